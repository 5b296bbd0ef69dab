{{/* A YAML list of sentences: what is missing for serious use. */}}
{{- define "weir.warnings" -}}
{{- if or (include "weir.runsKafka" .) (include "weir.runsPostgres" .) }}
- "quickstart runs a single broker or database without TLS or backup. NOT FOR PRODUCTION: give kafka.bootstrap and postgres.existingSecret."
{{- end }}
{{- if and .Values.kafka.bootstrap (hasSuffix "PLAINTEXT" (include "weir.kafkaProtocol" .)) }}
- "Events travel to and from Kafka unencrypted (kafka.securityProtocol={{ include "weir.kafkaProtocol" . }})."
{{- end }}
{{- if and .Values.postgres.existingSecret (not (include "weir.sslMode" .)) }}
- "postgres.sslMode is empty: unless the URL says otherwise, a database without TLS is accepted too."
{{- end }}
{{- if include "weir.isOneNode" . }}
- "storage.claim.accessMode is ReadWriteOnce: all applications run on one node. Use ReadWriteMany or an object store for more."
{{- end }}
{{- if and (eq .Values.storage.kind "claim") (not .Values.storage.claim.keep) (not .Values.storage.claim.existing) }}
- "storage.claim.keep is false: helm uninstall deletes the journal, which proves the bills."
{{- end }}
{{- if and (ne .Values.storage.kind "claim") (not (include "weir.storageSecret" .)) (not .Values.serviceAccount.annotations) }}
- "The object store has neither an existingSecret in storage nor service account annotations: pods must get their credentials from the node."
{{- end }}
{{- if not .Values.podMonitor.enabled }}
- "podMonitor.enabled is false: nobody reads the applications' metrics unless your Prometheus finds them by itself (networkPolicies.metricsFrom lets it in)."
{{- end }}
{{- if and .Values.dashboard.enabled (include "weir.dashboardWrites" .) }}
- "The dashboard holds the key that writes to the bucket: give dashboard.secrets.storage one that only reads."
{{- end }}
{{- if include "weir.apiWrites" . }}
- "The API holds the key that writes to the bucket: give api.secrets.storage one that only reads."
{{- end }}
{{- if and .Values.dashboard.enabled (include "weir.dashboardHasWritersIdentity" .) }}
- "The dashboard has the identity that writes to the bucket: give serviceAccount.dashboardAnnotations one that only reads."
{{- end }}
{{- if include "weir.apiHasWritersIdentity" . }}
- "The API has the identity that writes to the bucket: give serviceAccount.apiAnnotations one that only reads."
{{- end }}
{{- if not .Values.networkPolicies.enabled }}
- "networkPolicies.enabled is false: every pod of the cluster may speak to Weir's."
{{- end }}
{{- if not .Values.prometheusRule.enabled }}
- "prometheusRule.enabled is false: nobody is paged when events are late, dropped or stuck."
{{- end }}
{{- if and .Values.dashboard.enabled (not .Values.dashboard.signIn.enabled) (or .Values.dashboard.ingress.enabled .Values.dashboard.route.enabled) }}
- "The dashboard asks for no password: set dashboard.signIn, or put authentication in front of its ingress or route."
{{- end }}
{{- if and .Values.api.enabled .Values.api.ingress.enabled (not .Values.api.ingress.tlsSecret) }}
- "api.ingress.tlsSecret is empty: unless TLS ends before the ingress, keys and events travel unencrypted."
{{- end }}
{{- if and .Values.api.enabled (ne .Values.api.service.type "ClusterIP") }}
- "api.service.type is {{ .Values.api.service.type }}: unless TLS ends before the Service, keys and events travel unencrypted."
{{- end }}
{{- if and .Values.dashboard.enabled (not .Values.dashboard.prometheusUrl) }}
- "dashboard.prometheusUrl is empty: the dashboard shows neither lag nor alerts."
{{- end }}
{{- range $name, $job := .Values.jobs }}
{{- if and (not $job.enabled) (or (ne $name "analytics") $.Values.views $.Values.patterns $.Values.watches) }}
- "jobs.{{ $name }}.enabled is false: its work waits, and Kafka keeps events no longer than its retention."
{{- end }}
{{- end }}
{{- if or (not .Values.audit.enabled) (not .Values.audit.runs) .Values.audit.suspend }}
- "No audit is scheduled: nobody proves the bills, and what comes late is not corrected, unless you run `weir audit`."
{{- end }}
{{- if not .Values.setup.enabled }}
- "setup.enabled is false: run `python -m jobs migrate` yourself before the applications can start."
{{- end }}
{{- end }}
