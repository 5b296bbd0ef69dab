{{/* Spark's settings that must be known before the driver's pod exists; all others are in jobs/runtime/spark.py.
     Takes (dict "root" $ "job" {…}). */}}
{{- define "weir.sparkConf" -}}
{{- $conf := dict
  "spark.kubernetes.driver.pod.excludedFeatureSteps" "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
  "spark.ui.enabled" "false" -}}
{{- if eq .job.mode "cluster" -}}
{{- $conf = merge $conf (dict
  "spark.driver.port" "7078"
  "spark.driver.blockManager.port" "7079"
  "spark.blockManager.port" "7079"
  "spark.executor.failuresValidityInterval" "1h"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
  "spark.kubernetes.driver.reusePersistentVolumeClaim" "false") -}}
{{- if .root.Values.sparkSecret.existingSecret -}}
{{- $_ := set $conf "spark.authenticate.secret.file" (printf "/etc/weir-spark/%s" .root.Values.sparkSecret.key) -}}
{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $conf (.job.sparkConf | default dict)) -}}
{{- end }}
