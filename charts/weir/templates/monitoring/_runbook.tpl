{{/* Where alerts say that the runbook is: a page of the dashboard, unless told otherwise. */}}
{{- define "weir.runbookUrl" -}}
{{- $ingress := .Values.dashboard.ingress -}}
{{- if .Values.prometheusRule.runbookUrl -}}
{{- .Values.prometheusRule.runbookUrl -}}
{{- else if and .Values.dashboard.enabled $ingress.enabled -}}
{{- $scheme := $ingress.tlsSecret | empty | ternary "http" "https" -}}
{{- printf "%s://%s%s/runbook" $scheme (first $ingress.hosts) ($ingress.path | trimSuffix "/") -}}
{{- else -}}
runbook
{{- end -}}
{{- end }}
