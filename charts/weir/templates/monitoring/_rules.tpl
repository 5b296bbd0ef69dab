{{/* The parts that are disabled, as monitoring/rule_file.py names them; a JSON list. */}}
{{- define "weir.disabledParts" -}}
{{- $disabled := list -}}
{{- range $name, $job := .Values.jobs -}}
{{- if not $job.enabled -}}
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
{{- if not .Values.connect.enabled -}}
{{- $disabled = append $disabled "connect" -}}
{{- end -}}
{{- $disabled | toJson -}}
{{- end }}

{{/* The groups of rules of this release, without those that would fire for ever because a part is disabled; JSON. */}}
{{- define "weir.rules" -}}
{{- $disabled := include "weir.disabledParts" . | fromJsonArray -}}
{{- $text := .Files.Get "files/weir.rules.yaml" | replace "RELEASE_NAMESPACE" .Release.Namespace | replace "RELEASE_INSTANCE" .Release.Name | replace "RELEASE_RUNBOOK" (include "weir.runbookUrl" .) -}}
{{- $groups := list -}}
{{- range $group := ($text | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $isNeeded := true -}}
{{- range $rule.needs -}}
{{- if has . $disabled -}}
{{- $isNeeded = false -}}
{{- end -}}
{{- end -}}
{{- if $isNeeded -}}
{{- $rules = append $rules (omit $rule "needs") -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $groups = append $groups (dict "name" $group.name "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- $groups | toJson -}}
{{- end }}
