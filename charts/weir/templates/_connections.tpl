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

{{/* The protocol of your brokers: as given, or by the profile. */}}
{{- define "weir.kafkaProtocol" -}}
{{- if .Values.kafka.securityProtocol -}}
{{ .Values.kafka.securityProtocol }}
{{- else if and .Values.kafka.bootstrap (eq .Values.profile "production") -}}
{{ .Values.kafka.existingSecret | empty | ternary "SSL" "SASL_SSL" }}
{{- else -}}
PLAINTEXT
{{- end -}}
{{- end }}

{{- define "weir.sslMode" -}}
{{- if .Values.postgres.sslMode -}}
{{ .Values.postgres.sslMode }}
{{- else if eq .Values.profile "production" -}}
verify-full
{{- end -}}
{{- end }}

{{/* Kafka, with a user. Takes (list $ {…}), with the part's `secrets`. */}}
{{- define "weir.kafkaEnv" -}}
{{- $root := index . 0 -}}
{{- $protocol := include "weir.kafkaProtocol" $root -}}
{{ include "weir.kafkaPlace" $root }}
{{- if not (include "weir.runsKafka" $root) }}
{{- $secret := (index . 1 | default dict).kafka | default $root.Values.kafka.existingSecret }}
{{- with $root.Values.kafka }}
- name: WEIR_KAFKA_SECURITY_PROTOCOL
  value: {{ $protocol | quote }}
{{- if hasPrefix "SASL_" $protocol }}
- name: WEIR_KAFKA_SASL_MECHANISM
  value: {{ .saslMechanism | quote }}
- name: WEIR_KAFKA_USERNAME
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ .usernameKey }}
- name: WEIR_KAFKA_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ .passwordKey }}
{{- end }}
{{- if .caSecret }}
- name: WEIR_KAFKA_CA_FILE
  value: /etc/weir-kafka/{{ .caKey }}
{{- end }}
{{- if .clientSecret }}
- name: WEIR_KAFKA_CLIENT_FILE
  value: /etc/weir-kafka-client/{{ .clientKey }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The Secret with the client certificate of a part that speaks to Kafka. Takes (list $ {…}), with its `secrets`. */}}
{{- define "weir.kafkaClientSecret" -}}
{{- $root := index . 0 -}}
{{- if and $root.Values.kafka.clientSecret (not (include "weir.runsKafka" $root)) -}}
{{ (index . 1 | default dict).kafka | default $root.Values.kafka.clientSecret }}
{{- end -}}
{{- end }}

{{- define "weir.postgresSecret" -}}
{{ include "weir.runsPostgres" . | empty | ternary .Values.postgres.existingSecret (include "weir.quickstartSecret" .) }}
{{- end }}

{{/* What who reads metrics must bring, if anything. */}}
{{- define "weir.metricsTokenEnv" -}}
{{- with .Values.podMonitor }}
{{- if .tokenSecret }}
- name: WEIR_METRICS_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .tokenSecret }}
      key: {{ .tokenKey }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where Kafka is, which programs want to know that never speak to it. */}}
{{- define "weir.kafkaPlace" -}}
- name: WEIR_KAFKA_BOOTSTRAP
  value: {{ include "weir.kafkaBootstrap" . | quote }}
{{- end }}

{{/* The database as one of two roles: (list $ "urlKey" {…}) writes, (list $ "dashboardUrlKey" {…}) only reads; the last are the
     part's `secrets`. libpq reads PGSSLMODE and PGSSLROOTCERT itself where the URL does not say. */}}
{{- define "weir.postgresEnv" -}}
{{- $root := index . 0 -}}
- name: WEIR_POSTGRES_URL
  valueFrom:
    secretKeyRef:
      name: {{ (index . 2 | default dict).postgres | default (include "weir.postgresSecret" $root) }}
      {{- if include "weir.runsPostgres" $root }}
      key: {{ ternary "url" "dashboard-url" (eq (index . 1) "urlKey") }}
      {{- else }}
      key: {{ index $root.Values.postgres (index . 1) }}
      {{- end }}
- name: WEIR_POSTGRES_SCHEMA
  value: {{ $root.Values.postgres.schema | quote }}
{{- with include "weir.sslMode" $root }}
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
      name: {{ .Values.setup.secrets.postgres | default (include "weir.postgresSecret" .) }}
      key: {{ $isOurs | empty | ternary .Values.postgres.dashboardPasswordKey "dashboard-password" }}
{{- end }}
{{- end }}

{{/* The root of the Delta tables. */}}
{{- define "weir.tables" -}}
{{- if eq .Values.storage.kind "claim" -}}
/var/lib/weir/tables
{{- else -}}
{{ (get .Values.storage .Values.storage.kind).url | trimSuffix "/" }}
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

{{/* Name of the Secret with the object store's credentials; empty with a claim and for a workload identity. */}}
{{- define "weir.storageSecret" -}}
{{- if ne .Values.storage.kind "claim" -}}
{{ (get .Values.storage .Values.storage.kind).existingSecret }}
{{- end -}}
{{- end }}

{{/* The object store's credentials, as the variables they are in their Secret. Takes (list $ {…}), with the part's `secrets`. */}}
{{- define "weir.tablesEnvFrom" -}}
{{- $root := index . 0 -}}
{{- if ne $root.Values.storage.kind "claim" }}
{{- with (index . 1 | default dict).storage | default (include "weir.storageSecret" $root) }}
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

{{/* True where a part's Secret of the object store is the writers' one. Takes (list $ secret). */}}
{{- define "weir.holdsWritersKey" -}}
{{- $writers := include "weir.storageSecret" (index . 0) -}}
{{- if and $writers (has (index . 1) (list "" $writers)) }}true{{ end -}}
{{- end }}

{{/* True where a part without a Secret of the object store has the writers' identity. Takes (list $ secret annotations name), of
     its own account; where the chart makes no accounts, it is the writers' by its name. */}}
{{- define "weir.hasWritersIdentity" -}}
{{- $root := index . 0 -}}
{{- $annotations := index . 2 -}}
{{- $name := index . 3 -}}
{{- $byIdentity := and (ne $root.Values.storage.kind "claim") (not (include "weir.storageSecret" $root)) (not (index . 1)) -}}
{{- with $root.Values.serviceAccount -}}
{{- $isWriters := .create | ternary (and .annotations (not $annotations)) (has $name (list "" .name)) -}}
{{- if and $byIdentity $isWriters }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* The same of the dashboard, and of the API, which customers reach. */}}
{{- define "weir.dashboardHasWritersIdentity" -}}
{{- $account := .Values.serviceAccount -}}
{{- include "weir.hasWritersIdentity" (list . .Values.dashboard.secrets.storage $account.dashboardAnnotations $account.dashboardName) -}}
{{- end }}

{{- define "weir.apiHasWritersIdentity" -}}
{{- if and .Values.api.enabled .Values.api.readsTables -}}
{{- $account := .Values.serviceAccount -}}
{{- include "weir.hasWritersIdentity" (list . .Values.api.secrets.storage $account.apiAnnotations $account.apiName) -}}
{{- end -}}
{{- end }}

{{/* True where the dashboard holds the writers' key of the object store. */}}
{{- define "weir.dashboardWrites" -}}
{{- include "weir.holdsWritersKey" (list . .Values.dashboard.secrets.storage) -}}
{{- end }}

{{/* True where the API does, which customers reach. */}}
{{- define "weir.apiWrites" -}}
{{- if and .Values.api.enabled .Values.api.readsTables -}}
{{- include "weir.holdsWritersKey" (list . .Values.api.secrets.storage) -}}
{{- end -}}
{{- end }}
