{{/* What NOTES.txt prints: what to do next, and what is missing. */}}
{{- define "weir.notes" -}}
{{- $name := include "weir.fullname" . -}}
{{- $ns := .Release.Namespace -}}
Weir {{ .Chart.AppVersion }} is installed in namespace {{ $ns }}.

1. Wait until the applications run (about a minute):

     kubectl -n {{ $ns }} get sparkapplications -l app.kubernetes.io/instance={{ .Release.Name }} -w

2. See one event metered and billed (the log of a test that fails: kubectl -n {{ $ns }} logs {{ $name }}-test):

     helm -n {{ $ns }} test {{ .Release.Name }}
{{- if .Values.dashboard.enabled }}

3. Open the dashboard:
{{ if .Values.dashboard.ingress.enabled }}
{{- range .Values.dashboard.ingress.hosts }}
     {{ include "weir.dashboardOrigin" (list $ .) }}{{ $.Values.dashboard.ingress.path }}
{{- end }}
{{- else if and .Values.dashboard.route.enabled .Values.dashboard.route.hostnames }}
{{- range .Values.dashboard.route.hostnames }}
     https://{{ . }}{{ $.Values.dashboard.ingress.path }} (or http, as the Gateway listens)
{{- end }}
{{- else }}
     kubectl -n {{ $ns }} port-forward service/{{ $name }}-dashboard 8501:{{ .Values.dashboard.service.port }}
     then http://localhost:8501
{{- end }}
{{- end }}
{{- if .Values.api.enabled }}

{{ .Values.dashboard.enabled | ternary 4 3 }}. Make a key, and post events to the API:
{{ if (include "weir.job" (list . "ingestion") | fromJson).secrets.postgres }}
     weir keys create --scope ingest --by YOU

   in a pod with the release's Secrets (docs/how-to/database-roles.md#commands-that-people-run): ingestion's own role may
   not make keys. Post to
{{ else }}
     kubectl -n {{ $ns }} exec {{ $name }}-ingestion-driver -- weir keys create --scope ingest --by YOU
{{- end }}
{{- range (include "weir.apiUrls" . | fromYamlArray) }}
     {{ . }}
{{- end }}
{{- end }}

{{- if .Release.IsUpgrade }}

If you may want to go back, read docs/how-to/upgrade.md#going-back before you turn anything on: a downgrade is refused
while there is something that the earlier version would bill or read wrongly. Unless `batches` of ingestion is false, a
downgrade below schema 0064 is refused for 35 days after a record with several events.
{{- end }}

If an application shows no state at all, the Spark Operator does not watch this namespace: add {{ $ns }} to its
spark.jobNamespaces. If one is SUBMISSION_FAILED or fails again and again, its events and its driver's log say why:

     kubectl -n {{ $ns }} describe sparkapplication {{ $name }}-ingestion
     kubectl -n {{ $ns }} logs {{ $name }}-ingestion-driver
{{ range (include "weir.warnings" . | fromYamlArray) }}
WARNING: {{ . }}
{{- end }}
{{- end }}
