{{/* The head of a NetworkPolicy for some components of the release. Takes (dict "root" $ "name" "…" "components" […]
     "annotations" {…}); without components, for every pod of it. */}}
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
  {{- with .annotations }}
  annotations:
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

{{/* Egress rules, as YAML lists: to servers of names, to the brokers, and to the database. */}}
{{- define "weir.dnsEgress" -}}
- ports:
    {{- range .Values.networkPolicies.dnsPorts }}
    - protocol: UDP
      port: {{ . | int64 }}
    - protocol: TCP
      port: {{ . | int64 }}
    {{- end }}
  {{- with .Values.networkPolicies.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "weir.kafkaEgress" -}}
{{- if include "weir.runsKafka" . -}}
- to:
    - podSelector:
        {{- include "weir.componentSelector" (dict "root" . "components" (list "kafka")) | nindent 8 }}
  {{- include "weir.ports" (list 9092) | nindent 2 }}
{{- else -}}
{{- $ports := .Values.networkPolicies.kafkaPorts | default (include "weir.portsOf" (splitList "," .Values.kafka.bootstrap) | fromYamlArray) -}}
{{- include "weir.egress" (list $ports .Values.networkPolicies.kafkaTo) -}}
{{- end -}}
{{- end }}

{{- define "weir.postgresEgress" -}}
{{- if include "weir.runsPostgres" . -}}
- to:
    - podSelector:
        {{- include "weir.componentSelector" (dict "root" . "components" (list "postgres")) | nindent 8 }}
  {{- include "weir.ports" (list 5432) | nindent 2 }}
{{- else -}}
{{- include "weir.egress" (list .Values.networkPolicies.postgresPorts .Values.networkPolicies.postgresTo) -}}
{{- end -}}
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
