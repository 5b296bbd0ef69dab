{{/* How Prometheus reads the port `metrics` of some pods of the release. Takes (dict "root" $ "name" "…" "selects" {…}), labels
     of these pods. */}}
{{- define "weir.podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "weir.labels" (list .root "monitoring") | nindent 4 }}
    {{- with .root.Values.podMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: weir
      app.kubernetes.io/instance: {{ .root.Release.Name }}
      {{- toYaml .selects | nindent 6 }}
  podMetricsEndpoints:
    - port: metrics
      interval: {{ .root.Values.podMonitor.interval }}
      {{- with .root.Values.podMonitor }}
      {{- if .tokenSecret }}
      authorization:
        credentials:
          name: {{ .tokenSecret }}
          key: {{ .tokenKey }}
      {{- end }}
      {{- end }}
      # The series name their job themselves.
      honorLabels: true
      relabelings:
        # By this the rules tell two releases in one namespace apart.
        - targetLabel: release
          replacement: {{ .root.Release.Name }}
{{- end }}
