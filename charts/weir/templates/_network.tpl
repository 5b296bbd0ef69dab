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

{{/* An egress rule to servers outside the release. Takes (list ports peers); without peers, to any. */}}
{{- define "weir.egress" -}}
- {{- include "weir.ports" (index . 0) | nindent 2 }}
  {{- with index . 1 }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* A YAML list of the ports of some addresses: host:port, or URLs. Takes a list of texts; empty ones have none. */}}
{{- define "weir.portsOf" -}}
{{- $ports := dict -}}
{{- range . -}}
{{- if regexMatch ":[0-9]+(/|$)" . -}}
{{- $_ := set $ports (regexFind ":[0-9]+(/|$)" . | trimAll ":/") true -}}
{{- else if hasPrefix "https://" . -}}
{{- $_ := set $ports "443" true -}}
{{- else if hasPrefix "http://" . -}}
{{- $_ := set $ports "80" true -}}
{{- else if hasPrefix "smtps://" . -}}
{{- $_ := set $ports "465" true -}}
{{- else if hasPrefix "smtp://" . -}}
{{- $_ := set $ports "587" true -}}
{{- end -}}
{{- end -}}
{{- range keys $ports | sortAlpha }}
- {{ . }}
{{- end -}}
{{- end }}

{{/* The ports of a rule. Takes a list of numbers. */}}
{{- define "weir.ports" -}}
ports:
{{- range . }}
  - protocol: TCP
    port: {{ . | int64 }}
{{- end }}
{{- end }}

{{/* The pods of Connect that Strimzi runs, which labels them itself, as a list of NetworkPolicy peers; empty where it runs none. */}}
{{- define "weir.strimziPeer" -}}
{{- if and .Values.connect.enabled .Values.connect.strimzi.enabled -}}
- podSelector:
    matchLabels:
      strimzi.io/cluster: {{ include "weir.fullname" . }}-connect
{{- end -}}
{{- end }}
