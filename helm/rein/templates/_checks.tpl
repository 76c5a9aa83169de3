{{/* Rules between values, which the schema cannot express. Each error begins with the path of the value. */}}

{{/* Fails with all errors at once. Each check prints its errors, one per line. */}}
{{- define "rein.checks" -}}
{{- $errors := include "rein.errors" . | trim | splitList "\n" | uniq -}}
{{- if gt (len $errors) 1 -}}
{{- fail (printf "%d values are wrong:\n- %s" (len $errors) (join "\n- " $errors)) -}}
{{- else if first $errors -}}
{{- fail (first $errors) -}}
{{- end -}}
{{- end -}}

{{- define "rein.errors" -}}
{{- include "rein.checkFront" . -}}
{{- include "rein.checkEtcd" . -}}
{{- include "rein.checkTls" . -}}
{{- include "rein.checkRouter" . -}}
{{- include "rein.checkEdge" . -}}
{{- include "rein.checkModels" . -}}
{{- end -}}

{{- define "rein.checkFront" -}}
{{- $front := .Values.front -}}
{{- if $front.engines -}}
{{- if or .Values.etcd.trial .Values.etcd.endpoints .Values.models -}}
{{- println "front.engines: routers in front of these engines need no etcd and have no models; leave etcd.trial, etcd.endpoints and models empty" -}}
{{- end -}}
{{- if .Values.peerTls.enabled -}}
{{- println "front.engines: routers reach engines over HTTP; set peerTls.enabled to false" -}}
{{- end -}}
{{- $kinds := list -}}
{{- range list "inImage" "hostPath" "pvc" "image" "hub" -}}
{{- if hasKey $front.model . -}}{{- $kinds = append $kinds . -}}{{- end -}}
{{- end -}}
{{- if ne (len $kinds) 1 -}}
{{- printf "front.model: must have exactly one of hostPath, hub, pvc, image and inImage, got %s" (default "none" (join ", " $kinds)) | println -}}
{{- end -}}
{{- if and $front.model.image (semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version) -}}
{{- printf "front.model.image: image volumes need Kubernetes 1.35, got %s; use pvc or hostPath" .Capabilities.KubeVersion.Version | println -}}
{{- end -}}
{{- else if or $front.servedName $front.apiKey.secretName $front.ca.secretName $front.model -}}
{{- println "front.engines: must list an engine for front.model, front.servedName, front.apiKey or front.ca to have an effect" -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkEtcd" -}}
{{- $etcd := .Values.etcd -}}
{{- if and $etcd.trial $etcd.endpoints -}}
{{- println "etcd.trial: must be false if etcd.endpoints names an etcd" -}}
{{- end -}}
{{- if not (or $etcd.trial $etcd.endpoints .Values.front.engines) -}}
{{- println "etcd.endpoints: must name an etcd as HOST:PORT, or set etcd.trial to true for a single pod without storage" -}}
{{- end -}}
{{- if and $etcd.trial (or $etcd.tls.secretName $etcd.auth.user) -}}
{{- println "etcd.trial: has neither TLS nor users; leave etcd.tls.secretName and etcd.auth.user empty, or use etcd.endpoints" -}}
{{- end -}}
{{- if and $etcd.tls.serverName (not $etcd.tls.secretName) -}}
{{- println "etcd.tls.serverName: needs etcd.tls.secretName, the secret with ca.crt" -}}
{{- end -}}
{{- if ne (empty $etcd.auth.user) (empty $etcd.auth.secretName) -}}
{{- println "etcd.auth.user: needs etcd.auth.secretName, the secret with the password, and the other way round" -}}
{{- end -}}
{{- if and $etcd.auth.user (not $etcd.tls.secretName) -}}
{{- println "etcd.auth.user: needs etcd.tls.secretName: without TLS the password is sent in the clear" -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkTls" -}}
{{- range $path := list "peerTls" "publicTls" -}}
{{- $tls := get $.Values $path -}}
{{- if and $tls.enabled $tls.secretName $tls.certManager -}}
{{- printf "%s.secretName: must be empty if %s.certManager issues the certificate" $path $path | println -}}
{{- end -}}
{{- if and $tls.enabled (not $tls.secretName) (not $tls.certManager) -}}
{{- printf "%s.secretName: name a secret with ca.crt, tls.crt and tls.key, or set %s.certManager.issuerRef" $path $path | println -}}
{{- end -}}
{{- if and (not $tls.enabled) (or $tls.secretName $tls.certManager) -}}
{{- printf "%s.enabled: must be true for %s.secretName or %s.certManager to have an effect" $path $path $path | println -}}
{{- end -}}
{{- end -}}
{{- $public := .Values.publicTls -}}
{{- if and $public.certManager (not $public.dnsNames) -}}
{{- println "publicTls.dnsNames: must list the names that clients use, since publicTls.certManager issues the certificate" -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkRouter" -}}
{{- $scaling := .Values.router.autoscaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- printf "router.autoscaling.minReplicas: must be at most router.autoscaling.maxReplicas (%d), got %d" (int $scaling.maxReplicas) (int $scaling.minReplicas) | println -}}
{{- end -}}
{{- if and $scaling.enabled (not (dig "requests" "cpu" "" .Values.router.resources)) -}}
{{- println "router.resources.requests.cpu: must be set, since router.autoscaling.cpuPercent is a share of it" -}}
{{- end -}}
{{- include "rein.checkEnvironment" (dict "path" "router.env" "env" .Values.router.env) -}}
{{- include "rein.checkEnvironment" (dict "path" "controller.env" "env" .Values.controller.env) -}}
{{- end -}}

{{/* dict path, env: variables that flags of the chart would silently override, or that it sets itself. */}}
{{- define "rein.checkEnvironment" -}}
{{- $path := .path -}}
{{- $set := list "POD_NAME" "POD_IP" "GROUP_KEY" "CUDA_CACHE_PATH" "OTEL_EXPORTER_OTLP_ENDPOINT" "OTEL_TRACES_SAMPLER_ARG" -}}
{{- range $index, $variable := .env -}}
{{- if or (has $variable.name $set) (hasPrefix "REIN_" $variable.name) -}}
{{- printf "%s[%d].name: %s is set by the chart; use the value or the option that stands for it" $path $index $variable.name | println -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkEdge" -}}
{{- $values := .Values -}}
{{- if and $values.ingress.enabled (not $values.ingress.hosts) -}}
{{- println "ingress.hosts: must list at least one host name if ingress.enabled is true" -}}
{{- end -}}
{{- range $path := list "httpRoute" "grpcRoute" -}}
{{- $route := get $values $path -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- printf "%s.parentRefs: must name a Gateway if %s.enabled is true" $path $path | println -}}
{{- end -}}
{{- if and $route.enabled $values.publicTls.enabled -}}
{{- printf "%s.enabled: the Gateway ends TLS and speaks plain HTTP to the router; set publicTls.enabled to false" $path | println -}}
{{- end -}}
{{- end -}}
{{- if and $values.monitoring.serviceMonitor.enabled $values.networkPolicy.enabled (not $values.networkPolicy.prometheus) -}}
{{- println "networkPolicy.prometheus: must select the pods of Prometheus if monitoring.serviceMonitor.enabled is true" -}}
{{- end -}}
{{- end -}}
