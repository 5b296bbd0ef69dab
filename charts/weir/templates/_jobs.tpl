{{/* One application's own values: a job's, the audit's or the close's. Takes (list $ "name"). */}}
{{- define "weir.ownValues" -}}
{{- $values := (index . 0).Values -}}
{{- has (index . 1) (list "audit" "close") | ternary (get $values (index . 1)) (get $values.jobs (index . 1)) | toJson -}}
{{- end }}

{{/* The same over the defaults of all. Takes (list $ "name"); YAML of the same shape as `jobDefaults`. */}}
{{- define "weir.job" -}}
{{- $root := index . 0 -}}
{{- $job := mergeOverwrite (deepCopy $root.Values.jobDefaults) (include "weir.ownValues" . | fromJson) -}}
{{- if and (eq (index . 1) "analytics") (not (or $root.Values.views $root.Values.patterns $root.Values.watches)) -}}
{{- $job = set $job "enabled" false -}}
{{- end -}}
{{- $job | toJson -}}
{{- end }}

{{/* One configuration value of a job, or its default. Takes (list $ "name" "field"). */}}
{{- define "weir.jobConfigValue" -}}
{{- $root := index . 0 -}}
{{- $config := (include "weir.ownValues" (list $root (index . 1)) | fromJson).config -}}
{{- $facts := $root.Files.Get "files/jobs.yaml" | fromYaml -}}
{{- $defaults := has (index . 1) (list "audit" "close") | ternary (get $facts (index . 1)) (get $facts.defaults (index . 1)) -}}
{{- get (hasKey $config (index . 2) | ternary $config $defaults) (index . 2) | int64 -}}
{{- end }}

{{/* JSON, which is YAML too: toYaml would write 1000000 as 1e+06, and that is no integer. Takes (list $ "name"). */}}
{{- define "weir.jobConfig" -}}
{{- $root := index . 0 -}}
{{- if has (index . 1) (list "audit" "close") -}}
{{- (get $root.Values (index . 1)).config | toPrettyJson -}}
{{- else -}}
{{- $config := (index $root.Values.jobs (index . 1)).config -}}
{{- if and (eq (index . 1) "ingestion") $root.Values.contracts -}}
{{- $config = set (deepCopy $config) "contracts" $root.Values.contracts -}}
{{- end -}}
{{- if $root.Values.meters -}}
{{- $config = set (deepCopy $config) "meters" $root.Values.meters -}}
{{- end -}}
{{- if $root.Values.dimensions -}}
{{- $config = set (deepCopy $config) "dimensions" $root.Values.dimensions -}}
{{- end -}}
{{- if $root.Values.priceAttributes -}}
{{- $config = set (deepCopy $config) "price_attributes" $root.Values.priceAttributes -}}
{{- end -}}
{{- if eq (index . 1) "analytics" -}}
{{- $config = set (deepCopy $config) "views" $root.Values.views -}}
{{- if $root.Values.watches -}}
{{- $config = set $config "watches" true -}}
{{- end -}}
{{- if $root.Values.windows -}}
{{- $config = set $config "windows" $root.Values.windows -}}
{{- end -}}
{{- if $root.Values.patterns -}}
{{- $config = set $config "patterns" $root.Values.patterns -}}
{{- end -}}
{{- end -}}
{{- $config | toPrettyJson -}}
{{- end -}}
{{- end }}

{{/* Whether any application that is enabled has executors. */}}
{{- define "weir.hasClusterMode" -}}
{{- range $name := concat (keys .Values.jobs) (list "audit" "close") -}}
{{- $job := include "weir.job" (list $ $name) | fromJson -}}
{{- if and $job.enabled (eq $job.mode "cluster") }}true{{ end -}}
{{- end -}}
{{- end }}

{{/* Applications that speak to Kafka; the others read tables and the database. */}}
{{- define "weir.jobsWithKafka" -}}
[ingestion, billing, audit, close]
{{- end }}

{{/* The chart's own variables of a driver or executor. Takes what "weir.sparkPod" takes. */}}
{{- define "weir.sparkEnv" -}}
{{- include "weir.processEnv" .root }}
{{- if eq .role "driver" }}
{{- if has .name (include "weir.jobsWithKafka" . | fromYamlArray) }}
{{ include "weir.kafkaEnv" (list .root .job.secrets) }}
{{- else }}
{{ include "weir.kafkaPlace" .root }}
{{- end }}
{{ include "weir.postgresEnv" (list .root "urlKey" .job.secrets) }}
- name: WEIR_CHECKPOINTS
  value: /tmp/checkpoints
- name: WEIR_METRICS_PORT
  value: "8090"
- name: WEIR_METRICS_HOST
  value: 0.0.0.0
{{- include "weir.metricsTokenEnv" .root }}
{{- end }}
{{ include "weir.tablesEnv" .root }}
{{- end }}

{{/* Pod template of a driver or executor: what Spark has no setting for, without the operator's webhook.
     Takes (dict "root" $ "name" "…" "job" {…} "role" "driver"|"executor" "endsByItself" bool). */}}
{{- define "weir.sparkPod" -}}
{{- $isDriver := eq .role "driver" -}}
{{- $root := .root -}}
{{- $kafka := has .name (include "weir.jobsWithKafka" . | fromYamlArray) | ternary (dict "kafka" (.job.secrets | default dict)) dict -}}
{{- /* Tasks of these write files of the journal and of usage, and what one task hands to another. */}}
{{- $tasksWrite := has .name (list "ingestion" "joins") -}}
{{- $sparkSecret := eq .job.mode "cluster" | ternary $root.Values.sparkSecret.existingSecret "" -}}
metadata:
  labels:
    {{- include "weir.podLabels" (dict "root" .root "component" .name "mountsTables" true "labels" .job.labels) | nindent 4 }}
  annotations:
    # Of this job's configuration alone: a change of it restarts this job and no other.
    weir/config: {{ include "weir.jobConfig" (list .root .name) | sha256sum | trunc 16 | quote }}
    {{- with include "weir.secretChanges" .root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with .job.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  enableServiceLinks: false
  automountServiceAccountToken: {{ and $isDriver (eq .job.mode "cluster") }}
  terminationGracePeriodSeconds: {{ .job.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "weir.podSecurity" .root | nindent 4 }}
  {{- with include "weir.scheduling" (dict "root" .root "mountsTables" true "component" .name "scheduling" .job.scheduling) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: spark-kubernetes-{{ .role }}
      securityContext:
        {{- include "weir.containerSecurity" .root | nindent 8 }}
      env:
        {{- include "weir.env" (concat (include "weir.sparkEnv" . | fromYamlArray) .job.env) | nindent 8 }}
      {{- with concat (include "weir.tablesEnvFrom" (list .root .job.secrets) | fromYamlArray) .job.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if and $isDriver (not .endsByItself) }}
      ports:
        - name: metrics
          containerPort: 8090
          protocol: TCP
      # Ends a driver whose loop hangs; one that waits for a broker, a database or a store goes round.
      livenessProbe:
        httpGet:
          path: /live
          port: metrics
        initialDelaySeconds: 60
        periodSeconds: 15
        timeoutSeconds: 5
        # More than the pause before a driver that crashed is started again in its pod.
        failureThreshold: 8
      {{- end }}
      volumeMounts:
        {{- include "weir.volumeMounts" (merge (dict "root" .root "mountsTables" true "readsOnly" (not (or $isDriver $tasksWrite))) $kafka) | nindent 8 }}
        {{- if $isDriver }}
        - name: config
          mountPath: /etc/weir
          readOnly: true
        {{- end }}
        {{- if $sparkSecret }}
        - name: spark-secret
          mountPath: /etc/weir-spark
          readOnly: true
        {{- end }}
        {{- with .job.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "weir.volumes" (merge (dict "root" .root "mountsTables" true) $kafka) | nindent 4 }}
    {{- if $isDriver }}
    - name: config
      configMap:
        name: {{ include "weir.fullname" .root }}-{{ .name }}
    {{- end }}
    {{- with $sparkSecret }}
    - name: spark-secret
      secret:
        secretName: {{ . }}
    {{- end }}
    {{- with .job.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
