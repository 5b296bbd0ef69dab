{{/* Pod Security level `restricted`, for every pod of the chart. 185 is the image's user and the volumes' group. */}}
{{- define "weir.podSecurity" -}}
runAsNonRoot: true
{{- if eq .Values.podUser "image" }}
runAsUser: 185
runAsGroup: 185
fsGroup: 185
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "weir.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* True when everything that mounts the tables must share one node. */}}
{{- define "weir.isOneNode" -}}
{{- if and (eq .Values.storage.kind "claim") (eq .Values.storage.claim.accessMode "ReadWriteOnce") }}true{{ end -}}
{{- end }}

{{/* Labels of a pod. Takes (dict "root" $ "component" "…" "mountsTables" bool "labels" {…}). */}}
{{- define "weir.podLabels" -}}
{{ include "weir.selectorLabels" (list .root .component) }}
{{- if and .mountsTables (include "weir.isOneNode" .root) }}
weir-tables: {{ include "weir.fullname" .root }}
{{- end }}
{{- with .labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where a pod may run. Takes (dict "root" $ "mountsTables" bool "component" "…" "scheduling" {…} that goes over the
     release's). */}}
{{- define "weir.scheduling" -}}
{{- $scheduling := mergeOverwrite (deepCopy .root.Values.scheduling) (deepCopy (.scheduling | default dict)) -}}
{{- $affinity := $scheduling.affinity | default dict -}}
{{- if and .mountsTables (include "weir.isOneNode" .root) -}}
{{- $together := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict "weir-tables" (include "weir.fullname" .root))) -}}
{{- $pods := $affinity.podAffinity | default dict -}}
{{- $required := append ($pods.requiredDuringSchedulingIgnoredDuringExecution | default list) $together -}}
{{- $affinity = merge (dict "podAffinity" (merge (dict "requiredDuringSchedulingIgnoredDuringExecution" $required) $pods)) $affinity -}}
{{- end -}}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $scheduling.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $scheduling.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $scheduling.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $scheduling.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- include "weir.spread" (list $.root $.component .) | nindent 2 }}
{{- end }}
{{- end }}

{{/* Constraints without a selector of their own are for the component's pods. Takes (list $ "component" […]). */}}
{{- define "weir.spread" -}}
{{- $pods := dict "labelSelector" (dict "matchLabels" (include "weir.selectorLabels" . | fromYaml)) -}}
{{- $constraints := list -}}
{{- range index . 2 -}}
{{- $constraints = append $constraints (hasKey . "labelSelector" | ternary . (merge (deepCopy .) $pods)) -}}
{{- end -}}
{{- toYaml $constraints -}}
{{- end }}

{{/* Annotations of a pod that change, and so restart it, when the user asks for it. */}}
{{- define "weir.secretChanges" -}}
{{- with .Values.secretChanges.version }}
weir/secrets: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Annotations of a Deployment. Takes (list $ "secret" …); empty names do not count. */}}
{{- define "weir.reloader" -}}
{{- $names := list -}}
{{- range rest . -}}
{{- if . -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- if and (index . 0).Values.secretChanges.reloader $names }}
annotations:
  secret.reloader.stakater.com/reload: {{ $names | uniq | sortAlpha | join "," | quote }}
{{- end }}
{{- end }}

{{/* Files that a pod sees besides the image: scratch space, certificates, and the tables if it asks for them.
     Takes (dict "root" $ "mountsTables" bool "kafka" {…}): the part's `secrets`, if it speaks to Kafka. */}}
{{- define "weir.volumes" -}}
- name: scratch
  emptyDir:
    sizeLimit: {{ .root.Values.storage.scratchSize }}
{{- if and .mountsTables (eq .root.Values.storage.kind "claim") }}
- name: tables
  persistentVolumeClaim:
    claimName: {{ .root.Values.storage.claim.existing | default (printf "%s-tables" (include "weir.fullname" .root)) }}
{{- end }}
{{- with .root.Values.kafka.caSecret }}
- name: kafka-ca
  secret:
    secretName: {{ . }}
{{- end }}
{{- if hasKey . "kafka" }}
{{- with include "weir.kafkaClientSecret" (list .root .kafka) }}
- name: kafka-client
  secret:
    secretName: {{ . }}
{{- end }}
{{- end }}
{{- with .root.Values.postgres.caSecret }}
- name: postgres-ca
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes what "weir.volumes" takes, and "readsOnly" bool. */}}
{{- define "weir.volumeMounts" -}}
- name: scratch
  mountPath: /tmp
{{- if and .mountsTables (eq .root.Values.storage.kind "claim") }}
- name: tables
  mountPath: /var/lib/weir
  {{- if .readsOnly }}
  readOnly: true
  {{- end }}
{{- end }}
{{- if .root.Values.kafka.caSecret }}
- name: kafka-ca
  mountPath: /etc/weir-kafka
  readOnly: true
{{- end }}
{{- if hasKey . "kafka" }}
{{- if include "weir.kafkaClientSecret" (list .root .kafka) }}
- name: kafka-client
  mountPath: /etc/weir-kafka-client
  readOnly: true
{{- end }}
{{- end }}
{{- if .root.Values.postgres.caSecret }}
- name: postgres-ca
  mountPath: /etc/weir-postgres
  readOnly: true
{{- end }}
{{- with .root.Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "weir.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The chart's own variables of a command. Takes what "weir.commandContainer" takes. */}}
{{- define "weir.commandEnv" -}}
{{- include "weir.processEnv" .root }}
{{- if .withoutKafka }}
{{ include "weir.kafkaPlace" .root }}
{{- else }}
{{ include "weir.kafkaEnv" (list .root .secrets) }}
{{- end }}
{{ include "weir.postgresEnv" (list .root "urlKey" .secrets) }}
{{ include "weir.tablesEnv" .root }}
- name: WEIR_CHECKPOINTS
  value: /tmp/checkpoints
{{- end }}

{{/* A command in the release's image that sees what a driver sees, tables included.
     Takes (dict "root" $ "env" […] "volumeMounts" […] "secrets" {…} "withoutKafka" bool). */}}
{{- define "weir.commandContainer" -}}
image: {{ include "weir.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "weir.containerSecurity" .root | nindent 2 }}
env:
  {{- include "weir.env" (concat (include "weir.commandEnv" . | fromYamlArray) (.env | default list)) | nindent 2 }}
{{- with include "weir.tablesEnvFrom" (list .root .secrets) | trim }}
envFrom:
  {{- . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "weir.volumeMounts" (merge (dict "root" .root "mountsTables" true "readsOnly" false) (.withoutKafka | default false | ternary dict (dict "kafka" (.secrets | default dict)))) | nindent 2 }}
  {{- with .volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
