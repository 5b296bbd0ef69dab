{{/* Where alerts say that the runbook is: a page of the dashboard, unless prometheusRule.runbookUrl is given. */}}
{{- define "weir.runbookUrl" -}}
{{- $ingress := .Values.dashboard.ingress -}}
{{- if .Values.prometheusRule.runbookUrl -}}
{{- .Values.prometheusRule.runbookUrl -}}
{{- else if and .Values.dashboard.enabled $ingress.enabled -}}
{{- include "weir.dashboardOrigin" (list . (first $ingress.hosts)) }}{{ include "weir.dashboardPath" . }}/runbook
{{- else if and .Values.dashboard.enabled .Values.dashboard.route.enabled (not (hasPrefix "*" (first .Values.dashboard.route.hostnames | default "*"))) -}}
https://{{ first .Values.dashboard.route.hostnames }}{{ include "weir.dashboardPath" . }}/runbook
{{- else -}}
runbook
{{- end -}}
{{- end }}
