{{/* Pods that serve the API at least. */}}
{{- define "weir.apiReplicas" -}}
{{- with .Values.api -}}
{{- .autoscaling.enabled | ternary .autoscaling.minReplicas .replicas -}}
{{- end -}}
{{- end }}

{{/* The variables of an API's container: those of `api.env`, and the chart's own as far as they are not among these. */}}
{{- define "weir.apiEnv" -}}
{{- $ports := list (dict "name" "POLARS_MAX_THREADS" "value" "1") (dict "name" "WEIR_API_PORT" "value" "8080") (dict "name" "WEIR_METRICS_PORT" "value" "8090") (dict "name" "WEIR_METRICS_HOST" "value" "0.0.0.0") (dict "name" "WEIR_API_MAX_LAG_SECONDS" "value" (.Values.api.maxLagSeconds | int64 | toString)) (dict "name" "WEIR_API_ACCOUNT_ATTRIBUTE" "value" .Values.api.accountAttribute) (dict "name" "WEIR_API_REQUESTS_PER_SECOND" "value" (.Values.api.requestsPerSecond | int64 | toString)) (dict "name" "WEIR_API_EVENTS_PER_MINUTE" "value" (.Values.api.eventsPerMinute | int64 | toString)) -}}
{{- $own := concat (include "weir.processEnv" . | fromYamlArray) (include "weir.kafkaEnv" (list . .Values.api.secrets) | fromYamlArray) (include "weir.postgresEnv" (list . "urlKey" .Values.api.secrets) | fromYamlArray) $ports (include "weir.metricsTokenEnv" . | fromYamlArray) -}}
{{- with .Values.api.oidc -}}
{{- if .issuer -}}
{{- $own = concat $own (list (dict "name" "WEIR_API_OIDC_ISSUER" "value" .issuer) (dict "name" "WEIR_API_OIDC_AUDIENCE" "value" .audience) (dict "name" "WEIR_API_OIDC_ACCOUNTS_CLAIM" "value" .accountsClaim) (dict "name" "WEIR_API_OIDC_SCOPES_CLAIM" "value" .scopesClaim)) -}}
{{- end -}}
{{- end -}}
{{- if .Values.api.readsTables -}}
{{- $own = concat $own (include "weir.tablesEnv" . | fromYamlArray) -}}
{{- end -}}
{{- include "weir.env" (concat $own .Values.api.env) -}}
{{- end }}

{{/* A YAML list of where events are posted: its hosts, or the Service in the cluster. */}}
{{- define "weir.apiUrls" -}}
{{- $urls := list -}}
{{- with .Values.api -}}
{{- if .ingress.enabled -}}
{{- $scheme := .ingress.tlsSecret | empty | ternary "http" "https" -}}
{{- range .ingress.hosts -}}
{{- $urls = append $urls (printf "%s://%s" $scheme .) -}}
{{- end -}}
{{- end -}}
{{- if .route.enabled -}}
{{- range .route.hostnames -}}
{{- $urls = append $urls (printf "https://%s (or http, as the Gateway listens)" .) -}}
{{- end -}}
{{- end -}}
{{- $urls = append $urls (printf "http://%s-api.%s:%d (in the cluster)" (include "weir.fullname" $) $.Release.Namespace (int .service.port)) -}}
{{- end -}}
{{- toYaml $urls -}}
{{- end }}
