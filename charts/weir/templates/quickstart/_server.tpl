{{/* One server with a volume of its own. NOT FOR PRODUCTION.
     Takes (dict "root" $ "component" "kafka"|"postgres" "args" […] "port" n "env" "…" "size" "…" "resources" {…}). */}}
{{- define "weir.quickstartServer" -}}
{{- $name := printf "%s-%s" (include "weir.fullname" .root) .component -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "weir.labels" (list .root .component) | nindent 4 }}
  {{- with include "weir.beforeSetup" .root | trim }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
spec:
  selector:
    {{- include "weir.selectorLabels" (list .root .component) | nindent 4 }}
  ports:
    - name: {{ .component }}
      port: {{ .port }}
      targetPort: {{ .component }}
---
# NOT FOR PRODUCTION: one replica, no TLS, no backup.
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "weir.labels" (list .root .component) | nindent 4 }}
  {{- with include "weir.beforeSetup" .root | trim }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
spec:
  replicas: 1
  serviceName: {{ $name }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: {{ .root.Values.quickstart.keep | ternary "Retain" "Delete" }}
    whenScaled: Retain
  selector:
    matchLabels:
      {{- include "weir.selectorLabels" (list .root .component) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "weir.podLabels" (dict "root" .root "component" .component "mountsTables" false) | nindent 8 }}
      {{- with include "weir.secretChanges" .root | trim }}
      annotations:
        {{- . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "weir.serviceAccount" .root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 60
      securityContext:
        {{- include "weir.podSecurity" .root | nindent 8 }}
      {{- with include "weir.scheduling" (dict "root" .root "mountsTables" false "component" .component) | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "weir.pullSecrets" .root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "weir.serverImage" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: {{ .args | toJson }}
          securityContext:
            {{- include "weir.containerSecurity" .root | nindent 12 }}
          env:
            {{- $data := list (dict "name" "WEIR_DATA" "value" "/var/lib/weir") }}
            {{- $own := include "weir.processEnv" .root | fromYamlArray }}
            {{- include "weir.env" (concat $own $data (.env | fromYamlArray)) | nindent 12 }}
          ports:
            - name: {{ .component }}
              containerPort: {{ .port }}
          readinessProbe:
            tcpSocket:
              port: {{ .component }}
            periodSeconds: 2
          livenessProbe:
            tcpSocket:
              port: {{ .component }}
            initialDelaySeconds: 60
            periodSeconds: 20
            failureThreshold: 6
          resources:
            {{- toYaml .resources | nindent 12 }}
          volumeMounts:
            - name: data
              mountPath: /var/lib/weir
            - name: scratch
              mountPath: /tmp
            - name: shared-memory
              mountPath: /dev/shm
            {{- with .root.Values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: scratch
          emptyDir: {}
        - name: shared-memory
          emptyDir:
            medium: Memory
            sizeLimit: 128Mi
        {{- with .root.Values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .root.Values.quickstart.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .size }}
{{- end }}
