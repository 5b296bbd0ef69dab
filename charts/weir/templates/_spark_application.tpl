{{/* The spec of a SparkApplication. One that ends by itself is not started again, and shows no metrics.
     Takes (dict "root" $ "name" "…" "job" {…} "arguments" […] "endsByItself" bool). */}}
{{- define "weir.sparkApplication" -}}
{{- $hasExecutors := eq .job.mode "cluster" -}}
type: Python
pythonVersion: "3"
mode: cluster
sparkVersion: {{ (.root.Files.Get "files/jobs.yaml" | fromYaml).spark_version | quote }}
image: {{ include "weir.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- with .job.batchScheduler }}
batchScheduler: {{ . }}
{{- end }}
{{- with .job.batchSchedulerOptions }}
batchSchedulerOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and $hasExecutors .job.dynamicAllocation.enabled }}
{{- with .job.dynamicAllocation }}
dynamicAllocation:
  enabled: true
  initialExecutors: {{ .initialExecutors | int64 }}
  minExecutors: {{ .minExecutors | int64 }}
  maxExecutors: {{ .maxExecutors | int64 }}
  # There is no shuffle service on Kubernetes.
  shuffleTrackingEnabled: true
{{- end }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
mainApplicationFile: local:///opt/weir/jobs/__main__.py
arguments: {{ concat (list .name "--config" (printf "/etc/weir/%s.yaml" .name)) (.arguments | default list) | toJson }}
sparkConf:
  {{- include "weir.sparkConf" (dict "root" .root "job" .job) | nindent 2 }}
{{- with .job.hadoopConf }}
hadoopConf:
  {{- toYaml . | nindent 2 }}
{{- end }}
restartPolicy:
  {{- if .endsByItself }}
  type: Never
  {{- else }}
  type: Always
  onFailureRetryInterval: {{ .job.restart.afterFailureSeconds }}
  onSubmissionFailureRetryInterval: {{ .job.restart.afterSubmissionFailureSeconds }}
  {{- end }}
driver:
  {{- if not $hasExecutors }}
  kubernetesMaster: local[{{ .job.driver.cores }}]
  {{- end }}
  serviceAccount: {{ $hasExecutors | ternary (include "weir.driverServiceAccount" .root) (include "weir.serviceAccount" .root) }}
  cores: {{ .job.driver.cores }}
  coreRequest: {{ .job.driver.coreRequest | quote }}
  {{- with .job.driver.coreLimit }}
  coreLimit: {{ . | quote }}
  {{- end }}
  memory: {{ include "weir.jobConfigValue" (list .root .name "driver_memory_mib") }}m
  memoryOverhead: {{ .job.driver.memoryOverhead | quote }}
  template:
    {{- include "weir.sparkPod" (dict "root" .root "name" .name "job" .job "role" "driver" "endsByItself" .endsByItself) | nindent 4 }}
executor:
  # The CRD wants one even where the driver does everything; then none is started.
  instances: {{ $hasExecutors | ternary .job.executor.instances 1 }}
  cores: {{ .job.executor.cores }}
  coreRequest: {{ .job.executor.coreRequest | quote }}
  {{- with .job.executor.coreLimit }}
  coreLimit: {{ . | quote }}
  {{- end }}
  memory: {{ .job.executor.memory | quote }}
  memoryOverhead: {{ .job.executor.memoryOverhead | quote }}
  {{- if $hasExecutors }}
  serviceAccount: {{ include "weir.serviceAccount" .root }}
  template:
    {{- include "weir.sparkPod" (dict "root" .root "name" .name "job" .job "role" "executor") | nindent 4 }}
  {{- end }}
{{- end }}
