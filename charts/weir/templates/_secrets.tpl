{{/* Secrets as plain text in the values: everyone who may read the pod, the application or the release would see them.
     By the name of a variable, a setting or an argument, and in any value by its form. */}}
{{- define "weir.checkSecrets" -}}
{{- $variables := dict "extraEnv" .Values.extraEnv "jobDefaults.env" .Values.jobDefaults.env "dashboard.env" .Values.dashboard.env "api.env" .Values.api.env "connect.env" .Values.connect.env "audit.env" .Values.audit.env "close.env" .Values.close.env -}}
{{- $settings := dict "jobDefaults.sparkConf" .Values.jobDefaults.sparkConf "jobDefaults.hadoopConf" .Values.jobDefaults.hadoopConf "audit.sparkConf" .Values.audit.sparkConf "audit.hadoopConf" .Values.audit.hadoopConf "close.sparkConf" .Values.close.sparkConf "close.hadoopConf" .Values.close.hadoopConf -}}
{{- $arguments := dict "close.args" .Values.close.args -}}
{{- range $name, $job := .Values.jobs -}}
{{- $_ := set $variables (printf "jobs.%s.env" $name) $job.env -}}
{{- $_ := set $settings (printf "jobs.%s.sparkConf" $name) $job.sparkConf -}}
{{- $_ := set $settings (printf "jobs.%s.hadoopConf" $name) $job.hadoopConf -}}
{{- end -}}
{{- range $name, $batch := .Values.batch -}}
{{- $_ := set $variables (printf "batch.%s.env" $name) $batch.env -}}
{{- $_ := set $arguments (printf "batch.%s.args" $name) $batch.args -}}
{{- end -}}
{{- range $name, $run := .Values.audit.runs -}}
{{- $_ := set $arguments (printf "audit.runs.%s.args" $name) $run.args -}}
{{- end -}}
{{- $secret := "(?i)(secret|password|passwd|token|credential|access[._-]?key|account[._-]key)" -}}
{{- range $place, $list := $variables -}}
{{- range $list -}}
{{- $text := toString .value -}}
{{- $isPlace := and (hasPrefix "/" $text) (or (regexMatch "(?i)_(file|path|dir)$" .name) (regexMatch "\\.(key|pem|crt)$" $text)) -}}
{{- /* MAX_TOKENS and TOKENIZERS_PARALLELISM hold none. */}}
{{- $isNumber := and (regexMatch "^(true|false|[0-9]{1,6})$" $text) (not (regexMatch "(?i)(secret|password|passwd|credential|key)" .name)) -}}
{{- if and .value (regexMatch (printf "%s|(?i)(^|_)key$" $secret) .name) (not $isPlace) (not $isNumber) -}}
{{- fail (printf "%s gives %s as plain text: put it into a Secret, and name that with valueFrom.secretKeyRef." $place .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $place, $map := $settings -}}
{{- range $key, $_ := $map -}}
{{- if regexMatch $secret $key -}}
{{- fail (printf "%s holds %s, which everybody who may read the application can read: put it into a Secret, and give it by envFrom." $place $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{/* `--password x`, `--password=x` and `PASSWORD=x`, but not what refers to a variable: `--password=$(DB_PASSWORD)`. */}}
{{- $named := "(secret|password|passwd|token|credentials?|access[._-]?key|api[._-]?key)" -}}
{{- $reference := "[\"']?\\$" -}}
{{- range $place, $list := $arguments -}}
{{- range $index, $argument := $list -}}
{{- $given := regexFind (printf "(?i)%s=[\"']?[^\\s\"'$]" $named) $argument -}}
{{- if and (not $given) (regexMatch (printf "(?i)^--?[a-z0-9-]*%s$" $named) $argument) (not (hasPrefix "--no-" $argument)) -}}
{{- $next := index (append $list "") (add1 $index) -}}
{{- $given = regexMatch "^(--[a-z][a-z-]*|-[a-zA-Z])$" $next | ternary "" $next -}}
{{- end -}}
{{- if and $given (not (regexMatch (printf "^%s" $reference) $given)) -}}
{{- fail (printf "%s gives %s as plain text: put it into a Secret, name that in env with valueFrom.secretKeyRef, and refer to the variable as $(NAME)." $place (regexFind (printf "(?i)%s" $named) (regexMatch (printf "(?i)%s" $named) $given | ternary $given $argument))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $index, $object := .Values.extraObjects -}}
{{- $objects := list $object -}}
{{- if kindIs "string" $object -}}
{{- $objects = list -}}
{{- range regexSplit "(?m)^---" (tpl $object $) -1 -}}
{{- $objects = append $objects (fromYaml .) -}}
{{- end -}}
{{- end -}}
{{- range $given := $objects -}}
{{- range prepend ($given.items | default list) $given -}}
{{- if and (eq (toString .kind) "Secret") (or .data .stringData) -}}
{{- fail (printf "extraObjects[%d] is a Secret with its content, which everybody who may read the release can read: have it made in the cluster, as by an ExternalSecret." $index) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "weir.checkText" (list "" .Values) -}}
{{- end }}

{{/* Takes (list path value). What nobody writes by accident, at any place; `$(NAME)` and `{{"{{"}} … }}` are no secrets. */}}
{{- define "weir.checkText" -}}
{{- $path := index . 0 -}}
{{- $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- range $key, $inner := $value -}}
{{- include "weir.checkText" (list (printf "%s.%s" $path $key | trimPrefix ".") $inner) -}}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- range $index, $inner := $value -}}
{{- include "weir.checkText" (list (printf "%s[%d]" $path $index) $inner) -}}
{{- end -}}
{{- else if kindIs "string" $value -}}
{{- $found := "" -}}
{{- if regexMatch "[A-Za-z][A-Za-z0-9+.-]*://[^/\\s:@]*:[^/\\s@{}$(<][^/\\s@]*@" $value -}}
{{- $found = "a password in a URL" -}}
{{- else if regexMatch "(?i)loginmodule\\b[^;]*\\bpassword\\s*=\\s*[\"']?[^\\s\"'{$(<]" $value -}}
{{- $found = "a password in a line of JAAS" -}}
{{- else if regexMatch "(?i)(\\b(host|dbname|user|port)\\s*=.*\\bpassword\\s*=\\s*[\"']?[^\\s\"'{$(<]|\\bpassword\\s*=\\s*[\"']?[^\\s\"'{$(<].*\\b(host|dbname|user|port)\\s*=|://[^\\s]*[?&](ssl)?password=[^{$(<])" $value -}}
{{- $found = "the password of a database" -}}
{{- else if regexMatch "-----BEGIN [A-Z ]*PRIVATE KEY-----" $value -}}
{{- $found = "a private key" -}}
{{- else if regexMatch "\\b(AKIA|ASIA)[A-Z0-9]{16}\\b" $value -}}
{{- $found = "a key of AWS" -}}
{{- else if regexMatch "(?i)(\\b(AccountKey|SharedAccessKey)=|[?&]sig=)[a-z0-9+/%]{16}" $value -}}
{{- $found = "a key of Azure" -}}
{{- end -}}
{{- if $found -}}
{{- fail (printf "%s holds %s as plain text: put it into a Secret, and name that." $path $found) -}}
{{- end -}}
{{- end -}}
{{- end }}
