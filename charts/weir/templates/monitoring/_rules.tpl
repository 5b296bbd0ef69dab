{{/* The parts that are disabled, as monitoring/rule_file.py names them; a JSON list. */}}
{{- define "weir.disabledParts" -}}
{{- $disabled := list -}}
{{- range $name := keys .Values.jobs | sortAlpha -}}
{{- if not (include "weir.job" (list $ $name) | fromJson).enabled -}}
{{- $disabled = append $disabled $name -}}
{{- end -}}
{{- end -}}
{{- $isAudited := and .Values.audit.enabled (not .Values.audit.suspend) -}}
{{- $runs := 0 -}}
{{- $fullRuns := 0 -}}
{{- range $_, $run := .Values.audit.runs -}}
{{- if and $isAudited $run -}}
{{- $runs = add1 $runs -}}
{{- if not $run.args -}}
{{- $fullRuns = add1 $fullRuns -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $runs -}}
{{- $disabled = append $disabled "audit" -}}
{{- end -}}
{{- if not $fullRuns -}}
{{- $disabled = append $disabled "full_audit" -}}
{{- end -}}
{{- if not .Values.api.enabled -}}
{{- $disabled = append $disabled "api" -}}
{{- end -}}
{{- if not .Values.connect.enabled -}}
{{- $disabled = append $disabled "connect" -}}
{{- end -}}
{{- if not (include "weir.databaseDiskGib" . | int64) -}}
{{- $disabled = append $disabled "database_disk" -}}
{{- end -}}
{{- $disabled | toJson -}}
{{- end }}

{{/* Size of the database's disk; 0 where nobody knows it. */}}
{{- define "weir.databaseDiskGib" -}}
{{- if .Values.prometheusRule.databaseDiskGib -}}
{{- .Values.prometheusRule.databaseDiskGib | int64 -}}
{{- else if and (include "weir.runsPostgres" .) (regexMatch "^[0-9]+Gi$" .Values.quickstart.postgresSize) -}}
{{- trimSuffix "Gi" .Values.quickstart.postgresSize | int64 -}}
{{- else -}}
0
{{- end -}}
{{- end }}

{{/* The groups of rules of this release, without those that would fire for ever because a part is disabled. Each rule is JSON, which
     is YAML too. */}}
{{- define "weir.rules" -}}
{{- $disabled := include "weir.disabledParts" . | fromJsonArray -}}
{{- $text := .Files.Get "files/weir.rules.json" | replace "RELEASE_NAMESPACE" .Release.Namespace | replace "RELEASE_INSTANCE" .Release.Name | replace "RELEASE_RUNBOOK" (include "weir.runbookUrl" .) | replace "RELEASE_DATABASE_GIB" (include "weir.databaseDiskGib" .) -}}
groups:
{{- range $group := ($text | fromJson).groups }}
  - name: {{ $group.name }}
    rules:
    {{- range $rule := $group.rules }}
    {{- $isDisabled := false }}
    {{- range $rule.needs }}
    {{- if has . $disabled }}{{ $isDisabled = true }}{{ end }}
    {{- end }}
    {{- if not $isDisabled }}
      - {{ omit $rule "needs" | toJson }}
    {{- end }}
    {{- end }}
{{- end }}
{{- end }}
