{{/* The head of a NetworkPolicy for some components of the release. Takes (dict "root" $ "name" "…" "components" […]);
     without components, for every pod of it. */}}
{{- define "weir.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "weir.fullname" .root }}-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "weir.labels" (list .root "network") | nindent 4 }}
    {{- with .root.Values.networkPolicies.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  podSelector:
    {{- include "weir.componentSelector" . | nindent 4 }}
{{- end }}

{{- define "weir.componentSelector" -}}
matchLabels:
  app.kubernetes.io/name: weir
  app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .components }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: {{ . | toJson }}
{{- end }}
{{- end }}

{{/* The ports of a rule. Takes a list of numbers. */}}
{{- define "weir.ports" -}}
ports:
{{- range . }}
  - protocol: TCP
    port: {{ . | int64 }}
{{- end }}
{{- end }}
