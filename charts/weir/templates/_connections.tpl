{{/* Quickstart runs what is not given. */}}
{{- define "weir.runsKafka" -}}
{{- if and .Values.quickstart.enabled (not .Values.kafka.bootstrap) }}true{{ end -}}
{{- end }}

{{- define "weir.runsPostgres" -}}
{{- if and .Values.quickstart.enabled (not .Values.postgres.existingSecret) }}true{{ end -}}
{{- end }}

{{- define "weir.kafkaBootstrap" -}}
{{- if include "weir.runsKafka" . -}}
{{ include "weir.fullname" . }}-kafka:9092
{{- else -}}
{{ .Values.kafka.bootstrap }}
{{- end -}}
{{- end }}

{{- define "weir.quickstartSecret" -}}
{{ .Values.quickstart.existingSecret | default (printf "%s-quickstart" (include "weir.fullname" .)) }}
{{- end }}

{{- define "weir.kafkaEnv" -}}
- name: WEIR_KAFKA_BOOTSTRAP
  value: {{ include "weir.kafkaBootstrap" . | quote }}
{{- if not (include "weir.runsKafka" .) }}
{{- with .Values.kafka }}
- name: WEIR_KAFKA_SECURITY_PROTOCOL
  value: {{ .securityProtocol | quote }}
{{- if hasPrefix "SASL_" .securityProtocol }}
- name: WEIR_KAFKA_SASL_MECHANISM
  value: {{ .saslMechanism | quote }}
- name: WEIR_KAFKA_USERNAME
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .usernameKey }}
- name: WEIR_KAFKA_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .passwordKey }}
{{- end }}
{{- if .caSecret }}
- name: WEIR_KAFKA_CA_FILE
  value: /etc/weir-kafka/{{ .caKey }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weir.postgresSecret" -}}
{{ include "weir.runsPostgres" . | empty | ternary .Values.postgres.existingSecret (include "weir.quickstartSecret" .) }}
{{- end }}

{{/* The database as one of two roles: (list $ "urlKey") writes, (list $ "dashboardUrlKey") only reads. libpq reads
     PGSSLMODE and PGSSLROOTCERT itself where the URL does not say. */}}
{{- define "weir.postgresEnv" -}}
{{- $root := index . 0 -}}
- name: WEIR_POSTGRES_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "weir.postgresSecret" $root }}
      {{- if include "weir.runsPostgres" $root }}
      key: {{ ternary "url" "dashboard-url" (eq (index . 1) "urlKey") }}
      {{- else }}
      key: {{ index $root.Values.postgres (index . 1) }}
      {{- end }}
- name: WEIR_POSTGRES_SCHEMA
  value: {{ $root.Values.postgres.schema | quote }}
{{- with $root.Values.postgres.sslMode }}
- name: PGSSLMODE
  value: {{ . | quote }}
{{- end }}
{{- if $root.Values.postgres.caSecret }}
- name: PGSSLROOTCERT
  value: /etc/weir-postgres/{{ $root.Values.postgres.caKey }}
{{- end }}
{{- end }}

{{/* With it, a migration lets the role weir_dashboard log in. */}}
{{- define "weir.readerPasswordEnv" -}}
{{- $isOurs := include "weir.runsPostgres" . -}}
{{- if or $isOurs .Values.postgres.dashboardPasswordKey }}
- name: WEIR_DASHBOARD_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "weir.postgresSecret" . }}
      key: {{ $isOurs | empty | ternary .Values.postgres.dashboardPasswordKey "dashboard-password" }}
{{- end }}
{{- end }}

{{/* The root of the Delta tables. */}}
{{- define "weir.tables" -}}
{{- if eq .Values.storage.kind "s3" -}}
{{ .Values.storage.s3.url | trimSuffix "/" }}
{{- else -}}
/var/lib/weir/tables
{{- end -}}
{{- end }}

{{- define "weir.tablesEnv" -}}
- name: WEIR_TABLES
  value: {{ include "weir.tables" . | quote }}
{{- if eq .Values.storage.kind "s3" }}
{{- with .Values.storage.s3 }}
{{- if .region }}
- name: AWS_REGION
  value: {{ .region | quote }}
{{- end }}
{{- if .endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ .endpoint | quote }}
{{- if hasPrefix "http://" .endpoint }}
- name: AWS_ALLOW_HTTP
  value: "true"
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The object store's credentials, as the AWS_* variables they are in their Secret. */}}
{{- define "weir.tablesEnvFrom" -}}
{{- if eq .Values.storage.kind "s3" }}
{{- with .Values.storage.s3.existingSecret }}
- secretRef:
    name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The variables of a container, of each name the last: the chart's own, then what the user gives. Takes a list of variables. */}}
{{- define "weir.env" -}}
{{- $last := dict -}}
{{- range $place, $variable := . -}}
{{- $_ := set $last $variable.name $place -}}
{{- end -}}
{{- $variables := list -}}
{{- range $place, $variable := . -}}
{{- if eq (get $last $variable.name) $place -}}
{{- $variables = append $variables $variable -}}
{{- end -}}
{{- end -}}
{{- toYaml $variables -}}
{{- end }}

{{/* Paths a program may want to write to, when the root of its file system is read-only. */}}
{{- define "weir.processEnv" -}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
- name: HOME
  value: /tmp
- name: PYTHONUNBUFFERED
  value: "1"
- name: WEIR_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}
