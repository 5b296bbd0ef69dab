{{/* A name within its limit: as it is, or its beginning and a hash of the whole. Takes (list "name" limit). */}}
{{- define "weir.shortened" -}}
{{- $name := index . 0 -}}
{{- $limit := index . 1 | int -}}
{{- if gt (len $name) $limit -}}
{{- printf "%s-%s" (trunc (sub $limit 9 | int) $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end }}

{{/* The name all objects begin with: the release's, followed by "weir" unless the release's name already says it. Spark
     appends up to 23 characters to it, and Kubernetes takes 63. */}}
{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- include "weir.shortened" (list .Release.Name 40) -}}
{{- else -}}
{{- include "weir.shortened" (list (printf "%s-%s" .Release.Name .Chart.Name) 40) -}}
{{- end -}}
{{- end }}

{{/* What selects the pods of one component for ever. Takes (list $ "component"). */}}
{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of an object, never of a pod: the chart's version in a pod would restart it. Takes (list $ "component"). */}}
{{- define "weir.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: weir
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "weir.image" -}}
{{- include "weir.imageOf" (list . .Values.image) -}}
{{- end }}

{{/* Of quickstart's servers. */}}
{{- define "weir.serverImage" -}}
{{- include "weir.imageOf" (list . (.Values.quickstart.image.repository | empty | ternary .Values.image .Values.quickstart.image)) -}}
{{- end }}

{{/* Takes (list $ image). */}}
{{- define "weir.imageOf" -}}
{{- with index . 1 -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default (index $ 0).Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* For Argo CD, where setup is no hook: what its Job needs comes with it, before the applications. */}}
{{- define "weir.beforeSetup" -}}
{{- if not .Values.setup.hook }}
argocd.argoproj.io/sync-wave: "-1"
{{- end }}
{{- end }}

{{/* The name of a CronJob of `batch`: Kubernetes appends 11 characters. Takes (list $ "name"). */}}
{{- define "weir.batchName" -}}
{{- $name := include "weir.fullname" (index . 0) -}}
{{- include "weir.shortened" (list $name (sub 51 (len (index . 1)))) }}-{{ index . 1 }}
{{- end }}

{{/* The name of a schedule of audits: the operator appends the time of a run. Takes (list $ "name"). */}}
{{- define "weir.auditName" -}}
{{- $name := include "weir.fullname" (index . 0) -}}
{{- include "weir.shortened" (list $name (sub 36 (len (index . 1)))) }}-audit-{{ index . 1 }}
{{- end }}

{{/* Drivers with executors may make pods; everything else runs without any right. */}}
{{- define "weir.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "weir.fullname" .) }}
{{- end }}

{{- define "weir.driverServiceAccount" -}}
{{ .Values.serviceAccount.driverName | default (printf "%s-driver" (include "weir.fullname" .)) }}
{{- end }}

{{/* Customers reach the API: its account is not that of who writes the tables. */}}
{{- define "weir.apiServiceAccount" -}}
{{- with .Values.serviceAccount -}}
{{ .apiName | default (.create | ternary (printf "%s-api" (include "weir.fullname" $)) .name) }}
{{- end -}}
{{- end }}

{{- define "weir.dashboardServiceAccount" -}}
{{ .Values.serviceAccount.dashboardName | default (printf "%s-dashboard" (include "weir.fullname" .)) }}
{{- end }}
