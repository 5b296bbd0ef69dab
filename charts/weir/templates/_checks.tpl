{{/* What no schema can say: refused with a sentence before anything reaches the cluster. */}}
{{- define "weir.check" -}}
{{- include "weir.checkNames" . -}}
{{- include "weir.checkConnections" . -}}
{{- include "weir.checkStorage" . -}}
{{- include "weir.checkStrimzi" . -}}
{{- if and .Values.podDisruptionBudgets.enabled (include "weir.isOneNode" .) -}}
{{- fail "podDisruptionBudgets.enabled needs tables that several nodes can mount: with storage.claim.accessMode=ReadWriteOnce all drivers move to another node together or not at all, so a budget would stop a drain for ever." -}}
{{- end -}}
{{- include "weir.checkLengths" . -}}
{{- include "weir.checkTime" . -}}
{{- include "weir.checkSources" . -}}
{{- include "weir.checkContracts" . -}}
{{- include "weir.checkMeters" . -}}
{{- include "weir.checkViews" . -}}
{{- include "weir.checkSecrets" . -}}
{{- include "weir.checkKinds" . -}}
{{- include "weir.checkApi" . -}}
{{- include "weir.checkWebhooks" . -}}
{{- include "weir.checkAccounts" . -}}
{{- include "weir.checkExecutors" . -}}
{{- include "weir.checkMemory" . -}}
{{- include "weir.checkMonitoring" . -}}
{{- if and .Values.dashboard.route.enabled (not .Values.dashboard.route.parentRefs) -}}
{{- fail "dashboard.route.enabled needs dashboard.route.parentRefs: name the Gateway that it belongs to." -}}
{{- end -}}
{{- if and .Values.api.enabled .Values.api.oidc.issuer (not .Values.api.oidc.audience) -}}
{{- fail "api.oidc.issuer needs api.oidc.audience: otherwise a token that is for another program would be taken." -}}
{{- end -}}
{{- if and .Values.dashboard.enabled .Values.dashboard.signIn.enabled -}}
{{- range tuple "metadataUrl" "clientId" "existingSecret" "redirectUri" "accountsClaim" -}}
{{- if not (get $.Values.dashboard.signIn .) -}}
{{- fail (printf "dashboard.signIn.enabled needs dashboard.signIn.%s." .) -}}
{{- end -}}
{{- end -}}
{{- $callback := printf "%s/oauth2callback" (include "weir.dashboardPath" .) -}}
{{- if not (hasSuffix $callback .Values.dashboard.signIn.redirectUri) -}}
{{- fail (printf "dashboard.signIn.redirectUri is %s, but the dashboard is served below %s: it must end with %s." .Values.dashboard.signIn.redirectUri (include "weir.dashboardPath" .) $callback) -}}
{{- end -}}
{{- else if and .Values.dashboard.enabled (ne .Values.dashboard.service.type "ClusterIP") (not .Values.dashboard.withoutSignIn) -}}
{{- fail (printf "dashboard.service.type is %s, and viewers do not sign in: everybody who reaches it would see all bills. Set dashboard.signIn, or, if something before it asks who they are, dashboard.withoutSignIn=true." .Values.dashboard.service.type) -}}
{{- end -}}
{{- if and .Values.dashboard.ingress.enabled (not .Values.dashboard.ingress.hosts) -}}
{{- fail "dashboard.ingress.enabled needs dashboard.ingress.hosts: name the host that people open." -}}
{{- end -}}
{{- end }}

{{/* What a driver remembers is beside its heap, with all else of Python: a pod without room for it is killed when it is full. */}}
{{- define "weir.checkMemory" -}}
{{- range $name, $field := dict "joins" "waiting_memory_mib" "ingestion" "identity_memory_mib" -}}
{{- $mib := include "weir.jobConfigValue" (list $ $name $field) | int64 -}}
{{- $overhead := (include "weir.job" (list $ $name) | fromJson).driver.memoryOverhead -}}
{{- $overheadMib := mul (regexFind "^[0-9]+" $overhead | int64) (hasSuffix "g" $overhead | ternary 1024 1) -}}
{{- if ge $mib $overheadMib -}}
{{- fail (printf "jobs.%s.config.%s is %d, but jobs.%s.driver.memoryOverhead, which holds it beside all else, is %s: raise that by as much as this was raised." $name $field $mib $name $overhead) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A range of two minutes needs two samples, and a report must not look old because nobody has read the next one yet. */}}
{{- define "weir.checkMonitoring" -}}
{{- $interval := .Values.podMonitor.interval -}}
{{- $number := regexFind "^[0-9]+" $interval | int64 -}}
{{- $isLong := or (and (hasSuffix "m" $interval) (gt $number 1)) (and (regexMatch "[0-9]s$" $interval) (gt $number 60)) (and (hasSuffix "ms" $interval) (gt $number 60000)) -}}
{{- if and .Values.podMonitor.enabled .Values.prometheusRule.enabled $isLong -}}
{{- fail (printf "podMonitor.interval is %s, but Weir's alerts need a sample a minute: with fewer ApplicationStalled pages while all is well, and ApiUnavailable never does. Give at most 1m, or turn prometheusRule off." $interval) -}}
{{- end -}}
{{- end }}

{{- define "weir.checkAccounts" -}}
{{- with .Values.serviceAccount -}}
{{- if and (not .create) (not .name) -}}
{{- fail "serviceAccount.create is false: name the account of the pods that is there already (serviceAccount.name)." -}}
{{- end -}}
{{- if and (not .create) (not .driverName) (include "weir.hasClusterMode" $) -}}
{{- fail "serviceAccount.create is false, and a job has mode cluster: name the account of its driver, which may make pods (serviceAccount.driverName)." -}}
{{- end -}}
{{- if and (not .create) (not .dashboardName) $.Values.dashboard.enabled -}}
{{- fail "serviceAccount.create is false: name the account of the dashboard, which may read SparkApplications (serviceAccount.dashboardName)." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.quickstart.password .Values.quickstart.existingSecret -}}
{{- fail "quickstart.password and quickstart.existingSecret are both given: leave one out." -}}
{{- end -}}
{{- end }}

{{- define "weir.checkExecutors" -}}
{{- range $name := concat (keys .Values.jobs | sortAlpha) (list "audit" "close") -}}
{{- $job := include "weir.job" (list $ $name) | fromJson -}}
{{- $place := has $name (list "audit" "close") | ternary $name (printf "jobs.%s" $name) -}}
{{- with $job.dynamicAllocation -}}
{{- if and .enabled (ne $job.mode "cluster") -}}
{{- fail (printf "%s.dynamicAllocation.enabled needs %s.mode=cluster: in mode local there are no executors." $place $place) -}}
{{- end -}}
{{- if and .enabled (or (gt (int .minExecutors) (int .initialExecutors)) (gt (int .initialExecutors) (int .maxExecutors))) -}}
{{- fail (printf "%s.dynamicAllocation has %d executors at least, %d at the start and %d at most: they must not fall." $place (int .minExecutors) (int .initialExecutors) (int .maxExecutors)) -}}
{{- end -}}
{{- end -}}
{{- if and $job.batchSchedulerOptions (not $job.batchScheduler) -}}
{{- fail (printf "%s.batchSchedulerOptions is given, but batchScheduler is empty: name the scheduler." $place) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weir.checkNames" -}}
{{- $name := include "weir.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name) -}}
{{- fail (printf "The name %q cannot begin the names of Spark applications: it must start with a letter, hold a-z, 0-9 and - only, and have at most 40 characters. Choose another release name, or set fullnameOverride." $name) -}}
{{- end -}}
{{- $taken := concat (keys .Values.jobs) (list "api" "audit" "close" "connect" "dashboard" "driver" "kafka" "postgres" "setup" "tables" "test" "webhooks") -}}
{{- range $batch, $_ := .Values.batch -}}
{{- if has $batch $taken -}}
{{- fail (printf "batch.%s has the name of another part of Weir: choose another." $batch) -}}
{{- end -}}
{{- end -}}
{{- if .Values.audit.enabled -}}
{{- range $run, $_ := .Values.audit.runs -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,14}[a-z0-9])?$" $run) -}}
{{- fail (printf "audit.runs has %s, but a name holds a-z, 0-9 and -, begins with a letter, and has at most 16 characters." ($run | quote)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.close.enabled (gt (len (printf "%s-close" $name)) 43) -}}
{{- fail (printf "The name %s-close has more than 43 characters: the operator appends the time of a run, and Kubernetes takes 63 in a label. Choose a shorter name for the release, or set close.enabled=false." $name) -}}
{{- end -}}
{{- end }}

{{- define "weir.checkConnections" -}}
{{- if and .Values.quickstart.enabled (eq .Values.profile "production") -}}
{{- fail "profile=production and quickstart.enabled=true do not go together: quickstart's servers have no TLS and no backup." -}}
{{- end -}}
{{- if and (not .Values.quickstart.enabled) (not .Values.kafka.bootstrap) -}}
{{- fail "kafka.bootstrap is empty: give the addresses of your brokers, or set quickstart.enabled=true to try Weir out." -}}
{{- end -}}
{{- if and (not .Values.quickstart.enabled) (not .Values.postgres.existingSecret) -}}
{{- fail "postgres.existingSecret is empty: name a Secret with the database's URL, or set quickstart.enabled=true to try Weir out." -}}
{{- end -}}
{{- if and (hasPrefix "SASL_" (include "weir.kafkaProtocol" .)) (not .Values.kafka.existingSecret) -}}
{{- fail (printf "kafka.securityProtocol=%s needs kafka.existingSecret: a Secret with user name and password." (include "weir.kafkaProtocol" .)) -}}
{{- end -}}
{{- if and .Values.kafka.clientSecret (not (hasSuffix "SSL" (include "weir.kafkaProtocol" .))) -}}
{{- fail (printf "kafka.clientSecret is for kafka.securityProtocol=SSL or SASL_SSL, but that is %s." (include "weir.kafkaProtocol" .)) -}}
{{- end -}}
{{- if and (not .Values.kafka.bootstrap) (ne (include "weir.kafkaProtocol" .) "PLAINTEXT") -}}
{{- fail (printf "kafka.securityProtocol=%s is for your own brokers, but kafka.bootstrap is empty: quickstart's broker speaks PLAINTEXT only." .Values.kafka.securityProtocol) -}}
{{- end -}}
{{- $sslMode := include "weir.sslMode" . -}}
{{- if and (has $sslMode (list "verify-ca" "verify-full")) (not .Values.postgres.caSecret) -}}
{{- fail (printf "postgres.sslMode=%s needs postgres.caSecret: the certificate authority to verify the database with.%s" $sslMode (.Values.postgres.sslMode | empty | ternary " It is the default of profile=production; ask for less with postgres.sslMode." "")) -}}
{{- end -}}
{{- if eq .Values.profile "production" -}}
{{- if and .Values.dashboard.enabled (include "weir.dashboardWrites" .) -}}
{{- fail "profile=production needs dashboard.secrets.storage: a key that only reads the bucket, as the Secret of storage writes to it." -}}
{{- end -}}
{{- if and .Values.dashboard.enabled (include "weir.dashboardHasWritersIdentity" .) -}}
{{- fail "profile=production needs serviceAccount.dashboardAnnotations (dashboardName where accounts are not made): an identity that only reads the bucket, as that of the applications writes to it." -}}
{{- end -}}
{{- if include "weir.apiHasWritersIdentity" . -}}
{{- fail "profile=production needs serviceAccount.apiAnnotations (apiName where accounts are not made) with api.readsTables: an identity that only reads the bucket, as that of the applications writes to it." -}}
{{- end -}}
{{- if include "weir.apiWrites" . -}}
{{- fail "profile=production needs api.secrets.storage with api.readsTables: a key that only reads the bucket, as the Secret of storage writes to it." -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weir.checkApi" -}}
{{- if .Values.api.enabled -}}
{{- with .Values.api -}}
{{- if and .ingress.enabled (not .ingress.hosts) -}}
{{- fail "api.ingress.enabled needs api.ingress.hosts: name the host that events are posted to." -}}
{{- end -}}
{{- if and .route.enabled (not .route.parentRefs) -}}
{{- fail "api.route.enabled needs api.route.parentRefs: name the Gateway that it belongs to." -}}
{{- end -}}
{{- if .autoscaling.enabled -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail (printf "api.autoscaling.minReplicas is %d, but must be at most maxReplicas, which is %d." (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if not (hasKey .resources.requests "cpu") -}}
{{- fail "api.autoscaling.enabled needs api.resources.requests.cpu: targetCPUUtilization is a part of it." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weir.checkWebhooks" -}}
{{- with .Values.webhooks -}}
{{- if and .enabled .mail.url -}}
{{- if not .mail.sender -}}
{{- fail "webhooks.mail.url needs webhooks.mail.sender: the address that sends." -}}
{{- end -}}
{{- if ne (contains "@" .mail.url) (not (empty .mail.existingSecret)) -}}
{{- fail "webhooks.mail.url must name a user (smtps://USER@HOST:PORT) if webhooks.mail.existingSecret has a password, and only then." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weir.checkStrimzi" -}}
{{- if .Values.connect.strimzi.enabled -}}
{{- if not .Values.connect.enabled -}}
{{- fail "connect.strimzi.enabled needs connect.enabled=true: it says who runs the worker, not whether there is one." -}}
{{- end -}}
{{- with .Values.connect.strimzi -}}
{{- if eq (empty .image) (empty .build.image) -}}
{{- fail "connect.strimzi.enabled needs one of connect.strimzi.image, which has Debezium's connector for Postgres, and connect.strimzi.build.image, which Strimzi builds with it." -}}
{{- end -}}
{{- if and (not (include "weir.runsPostgres" $)) (or (not .database.host) (not .database.passwordSecret)) -}}
{{- fail "connect.strimzi.enabled needs connect.strimzi.database.host and .passwordSecret: Debezium cannot read the URL in postgres.existingSecret." -}}
{{- end -}}
{{- if and (hasPrefix "SASL_" (include "weir.kafkaProtocol" $)) (not .kafkaUsername) -}}
{{- fail "connect.strimzi.enabled needs connect.strimzi.kafkaUsername, the name in kafka.existingSecret: Strimzi takes only the password from a Secret." -}}
{{- end -}}
{{- if and .clientCertificate.secret (ne (include "weir.kafkaProtocol" $) "SSL") -}}
{{- fail (printf "connect.strimzi.clientCertificate is for kafka.securityProtocol=SSL, but that is %s." (include "weir.kafkaProtocol" $)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weir.checkStorage" -}}
{{- $kind := .Values.storage.kind -}}
{{- $addresses := dict "s3" "s3://bucket/weir" "abfs" "abfss://container@account.dfs.core.windows.net/weir" -}}
{{- range $store, $address := $addresses -}}
{{- $given := get $.Values.storage $store -}}
{{- if eq $kind $store -}}
{{- if not $given.url -}}
{{- fail (printf "storage.kind=%s needs storage.%s.url, such as %s." $kind $kind $address) -}}
{{- end -}}
{{- else if or $given.url $given.endpoint $given.existingSecret -}}
{{- fail (printf "storage.%s is given, but storage.kind is %s: set storage.kind=%s, or leave storage.%s empty." $store $kind $store $store) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A schema counts characters, and the limit of a name is one of bytes, as `len` counts here. */}}
{{- define "weir.checkLengths" -}}
{{- $devices := dig "clocks" "device" list .Values.jobs.ingestion.config -}}
{{- $models := keys (dig "completion_timeouts" dict .Values.jobs.joins.config) -}}
{{- range $place, $names := dict "ingestion.config.clocks.device" $devices "joins.config.completion_timeouts" $models -}}
{{- range $names -}}
{{- if gt (len .) 512 -}}
{{- fail (printf "jobs.%s holds a name of %d bytes, but names have at most 512: no event can have it. It begins with %s." $place (len .) (trunc 40 . | quote)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "weir.checkTime" -}}
{{- $grace := include "weir.jobConfigValue" (list . "billing" "grace_seconds") | int64 -}}
{{- $timeout := include "weir.jobConfigValue" (list . "joins" "completion_timeout_seconds") | int64 -}}
{{- $longest := $timeout -}}
{{- $shortest := $timeout -}}
{{- $ofLongest := "completion_timeout_seconds" -}}
{{- $ofShortest := "completion_timeout_seconds" -}}
{{- range $model, $seconds := .Values.jobs.joins.config.completion_timeouts -}}
{{- if gt (int64 $seconds) $longest -}}
{{- $longest = int64 $seconds -}}
{{- $ofLongest = printf "completion_timeouts.%s" $model -}}
{{- end -}}
{{- if lt (int64 $seconds) $shortest -}}
{{- $shortest = int64 $seconds -}}
{{- $ofShortest = printf "completion_timeouts.%s" $model -}}
{{- end -}}
{{- end -}}
{{/* Of two values that do not go together the one that was given is named first. */}}
{{- if lt $grace $longest -}}
{{- if hasKey .Values.jobs.billing.config "grace_seconds" -}}
{{- fail (printf "jobs.billing.config.grace_seconds is %d, but must be at least the longest of jobs.joins.config.completion_timeout_seconds and completion_timeouts: %s is %d. A request that is abandoned would always come after its window's grace." $grace $ofLongest $longest) -}}
{{- end -}}
{{- fail (printf "jobs.joins.config.%s is %d, but must be at most jobs.billing.config.grace_seconds, which is %d where it is not given: a request that is abandoned would always come after its window's grace. Raise that, or lower this." $ofLongest $longest $grace) -}}
{{- end -}}
{{- range $name, $meter := .Values.meters -}}
{{- if and (not (kindIs "invalid" $meter.grace_seconds)) (lt ($meter.grace_seconds | int64) $longest) -}}
{{- fail (printf "meters.%s.grace_seconds is %d, but must be at least the longest of jobs.joins.config.completion_timeout_seconds and completion_timeouts: %s is %d. A request that is abandoned would always come after its window's grace." $name ($meter.grace_seconds | int64) $ofLongest $longest) -}}
{{- end -}}
{{- end -}}
{{- $ahead := include "weir.jobConfigValue" (list . "ingestion" "max_clock_ahead_seconds") | int64 -}}
{{- if gt $ahead (div $shortest 2) -}}
{{- if hasKey .Values.jobs.ingestion.config "max_clock_ahead_seconds" -}}
{{- fail (printf "jobs.ingestion.config.max_clock_ahead_seconds is %d, but must be at most half of the shortest of jobs.joins.config.completion_timeout_seconds and completion_timeouts: %s is %d. A stamp that is believed would end requests that are under way." $ahead $ofShortest $shortest) -}}
{{- end -}}
{{- fail (printf "jobs.joins.config.%s is %d, but must be at least %d: twice jobs.ingestion.config.max_clock_ahead_seconds, which is %d where it is not given. A stamp that is believed would end requests that are under way. Raise this, or lower that." $ofShortest $shortest (mul 2 $ahead) $ahead) -}}
{{- end -}}
{{- end }}

{{- define "weir.checkSources" -}}
{{- $silent := include "weir.jobConfigValue" (list . "ingestion" "source_silent_after_seconds") | int64 -}}
{{- $retired := include "weir.jobConfigValue" (list . "ingestion" "source_retired_after_seconds") | int64 -}}
{{- if le $retired $silent -}}
{{- if not (hasKey .Values.jobs.ingestion.config "source_retired_after_seconds") -}}
{{- fail (printf "jobs.ingestion.config.source_silent_after_seconds is %d, but must be less than source_retired_after_seconds, which is %d where it is not given: raise that, or lower this." $silent $retired) -}}
{{- end -}}
{{- fail (printf "jobs.ingestion.config.source_retired_after_seconds is %d, but must be greater than source_silent_after_seconds, which is %d." $retired $silent) -}}
{{- end -}}
{{- end }}

{{/* Which keywords a contract may have, ingestion says at its start. */}}
{{- define "weir.checkContracts" -}}
{{- $inner := .Values.jobs.ingestion.config.contracts | default list -}}
{{- if and .Values.contracts $inner -}}
{{- fail "contracts and jobs.ingestion.config.contracts are both given: leave one out." -}}
{{- end -}}
{{- $types := dict -}}
{{- range concat .Values.contracts $inner -}}
{{- $type := get . "$id" -}}
{{- if gt (len $type) 512 -}}
{{- fail (printf "contracts holds a $id of %d bytes, but a type of events has at most 512. It begins with %s." (len $type) (trunc 40 $type | quote)) -}}
{{- end -}}
{{- if hasKey $types $type -}}
{{- fail (printf "contracts holds two documents with the $id %q: leave one out." $type) -}}
{{- end -}}
{{- $_ := set $types $type true -}}
{{- end -}}
{{- end }}

{{/* Which columns a meter can sum, ingestion says at its start. */}}
{{- define "weir.checkMeters" -}}
{{- $defaults := (.Files.Get "files/jobs.yaml" | fromYaml).defaults -}}
{{- range $given, $setting := dict "meters" "meters" "dimensions" "dimensions" "priceAttributes" "price_attributes" -}}
{{- $said := dict -}}
{{- range $name, $job := $.Values.jobs -}}
{{- $own := hasKey $job.config $setting | ternary (get $job.config $setting) (get $.Values $given | default (get $defaults.billing $setting)) -}}
{{- $_ := set $said ($own | toJson) $name -}}
{{- end -}}
{{- if gt (len $said) 1 -}}
{{- fail (printf "%s are the same for all jobs: give them once, as %s beside jobs." $setting $given) -}}
{{- end -}}
{{- end -}}
{{- $declared := .Values.meters | default $defaults.billing.meters -}}
{{- range $name, $_ := .Values.jobs.billing.config.late_policy -}}
{{- if not (hasKey $declared $name) -}}
{{- fail (printf "jobs.billing.config.late_policy names %s, but the meters are %s." $name (keys $declared | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- range $name, $meter := .Values.meters -}}
{{- if not (regexMatch "^[a-z][a-z0-9_]{0,62}$" $name) -}}
{{- fail (printf "meters has %s, but a name holds a-z, 0-9 and _, begins with a letter, and has at most 63 characters." ($name | quote)) -}}
{{- end -}}
{{- $ways := list -}}
{{- range tuple "count" "sum" "unique" "min" "max" "latest" -}}
{{- if get $meter . -}}
{{- $ways = append $ways . -}}
{{- end -}}
{{- end -}}
{{- if ne (len $ways) 1 -}}
{{- fail (printf "meters.%s has one of count: outcomes and sum: <column>. A meter of a period has one of unique, min, max and latest: <column> instead." $name) -}}
{{- end -}}
{{- if ne (has (first $ways) (list "count" "sum")) (empty $meter.period) -}}
{{- fail (printf "meters.%s has %s, and period (day or month) belongs to unique, min, max and latest, each of which needs it." $name (first $ways)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Which columns a view or a pattern can read, analytics says at its start. */}}
{{- define "weir.checkViews" -}}
{{- range $given := list "views" "windows" "patterns" "watches" -}}
{{- if hasKey $.Values.jobs.analytics.config $given -}}
{{- fail (printf "jobs.analytics.config.%s: give it as %s beside jobs." $given $given) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Only a live cluster lists kinds ("v1/Pod"); `helm template` lists groups, and then nothing is refused. */}}
{{- define "weir.checkKinds" -}}
{{- if and .Values.admissionPolicy.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "admissionPolicy.enabled needs Kubernetes 1.30 or newer, and this is %s." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" -}}
{{- if not (.Capabilities.APIVersions.Has "sparkoperator.k8s.io/v1beta2/SparkApplication") -}}
{{- fail "This cluster does not know SparkApplication: install the Kubeflow Spark Operator first, and let it watch this namespace (spark.jobNamespaces)." -}}
{{- end -}}
{{- if and .Values.audit.enabled .Values.audit.runs (not (.Capabilities.APIVersions.Has "sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication")) -}}
{{- fail "This cluster does not know ScheduledSparkApplication: install all of the Kubeflow Spark Operator's kinds, or set audit.enabled=false." -}}
{{- end -}}
{{- if and .Values.close.enabled (not (.Capabilities.APIVersions.Has "sparkoperator.k8s.io/v1beta2/ScheduledSparkApplication")) -}}
{{- fail "This cluster does not know ScheduledSparkApplication: install all of the Kubeflow Spark Operator's kinds, or set close.enabled=false." -}}
{{- end -}}
{{- if and .Values.connect.strimzi.enabled (not (.Capabilities.APIVersions.Has "kafka.strimzi.io/v1/KafkaConnector")) -}}
{{- fail "This cluster does not know KafkaConnector of kafka.strimzi.io/v1: install Strimzi 0.49 or newer first, or set connect.strimzi.enabled=false." -}}
{{- end -}}
{{- if and .Values.dashboard.enabled .Values.dashboard.route.enabled (not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1/HTTPRoute")) -}}
{{- fail "This cluster does not know HTTPRoute of gateway.networking.k8s.io/v1: install the Gateway API first, or set dashboard.route.enabled=false." -}}
{{- end -}}
{{- if and .Values.api.enabled .Values.api.route.enabled (not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1/HTTPRoute")) -}}
{{- fail "This cluster does not know HTTPRoute of gateway.networking.k8s.io/v1: install the Gateway API first, or set api.route.enabled=false." -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor")) -}}
{{- fail "This cluster does not know PodMonitor: install the Prometheus Operator first, or set podMonitor.enabled=false." -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule")) -}}
{{- fail "This cluster does not know PrometheusRule: install the Prometheus Operator first, or set prometheusRule.enabled=false." -}}
{{- end -}}
{{- end -}}
{{- end }}
