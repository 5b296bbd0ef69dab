{{/* The path below which the page is served, without a slash at its end. */}}
{{- define "weir.dashboardPath" -}}
{{- or .Values.dashboard.ingress.enabled .Values.dashboard.route.enabled | ternary (.Values.dashboard.ingress.path | trimSuffix "/") "" -}}
{{- end }}

{{/* Where people find one of the Ingress's hosts, without a path. Takes (list $ "host"). */}}
{{- define "weir.dashboardOrigin" -}}
{{- (index . 0).Values.dashboard.ingress.tlsSecret | empty | ternary "http" "https" }}://{{ index . 1 }}
{{- end }}

{{/* What dashboard/settings.py reads, and how Streamlit serves. */}}
{{- define "weir.dashboardEnv" -}}
{{- include "weir.processEnv" . }}
{{ include "weir.postgresEnv" (list . "dashboardUrlKey" .Values.dashboard.secrets) }}
{{ include "weir.tablesEnv" . }}
{{- with .Values.dashboard.accounts }}
- name: WEIR_ACCOUNTS
  value: {{ join "," . | quote }}
{{- end }}
{{- if .Values.dashboard.signIn.enabled }}
{{- with .Values.dashboard.signIn }}
- name: WEIR_OIDC_METADATA_URL
  value: {{ .metadataUrl | quote }}
- name: WEIR_OIDC_CLIENT_ID
  value: {{ .clientId | quote }}
- name: WEIR_OIDC_REDIRECT_URI
  value: {{ .redirectUri | quote }}
- name: WEIR_OIDC_ACCOUNTS_CLAIM
  value: {{ .accountsClaim | quote }}
- name: WEIR_OIDC_SCOPE
  value: {{ .scope | quote }}
- name: WEIR_OIDC_HOURS
  value: {{ .hours | toString | quote }}
- name: WEIR_OIDC_CLIENT_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: client-secret
- name: WEIR_OIDC_COOKIE_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: cookie-secret
{{- end }}
{{- end }}
{{- with .Values.dashboard.prometheusUrl }}
- name: WEIR_PROMETHEUS_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.dashboard.alertmanagerUrl }}
- name: WEIR_ALERTMANAGER_URL
  value: {{ . | quote }}
{{- end }}
- name: WEIR_RELEASE
  value: {{ .Release.Name | quote }}
- name: STREAMLIT_SERVER_HEADLESS
  value: "true"
- name: STREAMLIT_SERVER_ADDRESS
  value: 0.0.0.0
- name: STREAMLIT_SERVER_PORT
  value: "8501"
- name: STREAMLIT_SERVER_FILE_WATCHER_TYPE
  value: none
{{- with include "weir.dashboardPath" . }}
- name: STREAMLIT_SERVER_BASE_URL_PATH
  value: {{ . | quote }}
{{- end }}
- name: STREAMLIT_BROWSER_GATHER_USAGE_STATS
  value: "false"
- name: STREAMLIT_CLIENT_SHOW_ERROR_DETAILS
  value: none
- name: STREAMLIT_CLIENT_TOOLBAR_MODE
  value: minimal
{{- end }}
