{{- define "rein.checkModels" -}}
{{- $names := dict -}}
{{- $served := dict -}}
{{- $sets := dict -}}
{{- $fullname := include "rein.fullname" . -}}
{{- range $taken := list "router" "controller" "etcd" "workers" "peer" "public" "verify" -}}
{{- $_ := set $names $taken "" -}}
{{- end -}}
{{- $models := include "rein.models" . | fromJsonArray -}}
{{- range $index, $model := $models -}}
{{- $path := printf "models[%d]" $index -}}
{{- $of := dict "root" $ "path" $path "model" $model -}}
{{- if hasKey $names $model.name -}}
{{- printf "%s.name: %s is taken by another model or by a part of the chart" $path $model.name | println -}}
{{- end -}}
{{- $_ := set $names $model.name "" -}}
{{- $name := include "rein.servedName" $model -}}
{{- if hasKey $served $name -}}
{{- printf "%s.servedName: %s is served by %s already" $path $name (get $served $name) | println -}}
{{- end -}}
{{- $_ := set $served $name $path -}}
{{- $suffix := ternary (printf "-g%d" (int $model.groups)) "" (gt (int $model.podsPerGroup) 1) -}}
{{- $longest := printf "%s-%s%s" $fullname $model.name $suffix -}}
{{- if gt (len $longest) 52 -}}
{{- printf "%s.name: the name %s of its StatefulSet must have at most 52 characters, got %d" $path $longest (len $longest) | println -}}
{{- end -}}
{{- include "rein.checkGroups" $of -}}
{{- include "rein.checkSource" $of -}}
{{- include "rein.checkDevices" $of -}}
{{- include "rein.checkMemory" $of -}}
{{- include "rein.checkAutoscaling" $of -}}
{{- include "rein.checkEnvironment" (dict "path" (printf "%s.env" $path) "env" $model.env) -}}
{{- $first := index $models 0 -}}
{{- if ne (int $model.spares) (int $first.spares) -}}
{{- printf "%s.spares: must be %d as for models[0], got %d: the controller keeps one number of spares for all models" $path (int $first.spares) (int $model.spares) | println -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkGroups" -}}
{{- $path := .path -}}
{{- $model := .model -}}
{{- $pods := int $model.podsPerGroup -}}
{{- $ranks := mul $pods (len $model.devices) -}}
{{- if ne (int $model.ranks) (int $ranks) -}}
{{- printf "%s.ranks: must be %d (podsPerGroup %d times %d devices), got %d" $path $ranks $pods (len $model.devices) (int $model.ranks) | println -}}
{{- end -}}
{{- if and (eq $model.workload "lws") (eq $pods 1) -}}
{{- printf "%s.workload: lws is for groups of several pods; %s.podsPerGroup is 1" $path $path | println -}}
{{- end -}}
{{- if hasKey $model "updateGroups" -}}
{{- if or (eq $pods 1) (ne $model.workload "statefulset") -}}
{{- printf "%s.updateGroups: is for groups of several pods with workload statefulset; others are updated group by group" $path | println -}}
{{- end -}}
{{- if gt (int $model.updateGroups) (int $model.groups) -}}
{{- printf "%s.updateGroups: must be at most %s.groups (%d), got %d" $path $path (int $model.groups) (int $model.updateGroups) | println -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkSource" -}}
{{- $path := .path -}}
{{- $source := .model.source -}}
{{- $kinds := list -}}
{{- range list "inImage" "hostPath" "pvc" "image" "init" "hub" -}}
{{- if hasKey $source . -}}{{- $kinds = append $kinds . -}}{{- end -}}
{{- end -}}
{{- if ne (len $kinds) 1 -}}
{{- printf "%s.source: must have exactly one of hostPath, hub, pvc, image, init and inImage, got %s" $path (default "none" (join ", " $kinds)) | println -}}
{{- end -}}
{{- if and $source.image (semverCompare "<1.35.0-0" .root.Capabilities.KubeVersion.Version) -}}
{{- printf "%s.source.image: image volumes need Kubernetes 1.35, got %s; use pvc, hostPath or init" $path .root.Capabilities.KubeVersion.Version | println -}}
{{- end -}}
{{- range $kind, $volumes := dict "init" "emptyDir, claimTemplate and hostPath" "hub" "emptyDir, claimTemplate, hostPath and pvc" -}}
{{- with get $source $kind -}}
{{- $volume := default dict .volume -}}
{{- if ne (len $volume) 1 -}}
{{- printf "%s.source.%s.volume: must have exactly one of %s" $path $kind $volumes | println -}}
{{- end -}}
{{- if and $volume.claimTemplate (eq $.model.workload "lws") -}}
{{- printf "%s.source.%s.volume.claimTemplate: needs workload statefulset; with lws use emptyDir or hostPath" $path $kind | println -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkDevices" -}}
{{- $path := .path -}}
{{- $model := .model -}}
{{- $seen := dict -}}
{{- range $index, $device := $model.devices -}}
{{- $gpu := ne (toString $device) "cpu" -}}
{{- if ne $gpu (eq $model.engine "cuda") -}}
{{- printf "%s.devices[%d]: must be %s with engine %s, got %s" $path $index (ternary "the index of a GPU" "cpu" (eq $model.engine "cuda")) $model.engine (toString $device) | println -}}
{{- end -}}
{{- if and $gpu (hasKey $seen (toString $device)) -}}
{{- printf "%s.devices[%d]: GPU %s is listed twice" $path $index (toString $device) | println -}}
{{- end -}}
{{- $_ := set $seen (toString $device) "" -}}
{{- end -}}
{{- range $kind := list "limits" "requests" -}}
{{- if hasKey (dig $kind dict $model.resources) "nvidia.com/gpu" -}}
{{- printf "%s.resources.%s[nvidia.com/gpu]: is computed from %s.devices; leave it out" $path $kind $path | println -}}
{{- end -}}
{{- end -}}
{{- if and $model.resourceClaims (ne $model.engine "cuda") -}}
{{- printf "%s.resourceClaims: needs engine cuda, got %s" $path $model.engine | println -}}
{{- end -}}
{{- $claimed := 0 -}}
{{- range $index, $claim := $model.resourceClaims -}}
{{- $kinds := 0 -}}
{{- range list "deviceClassName" "resourceClaimName" "resourceClaimTemplateName" -}}
{{- if hasKey $claim . -}}{{- $kinds = add1 $kinds -}}{{- end -}}
{{- end -}}
{{- if ne (int $kinds) 1 -}}
{{- printf "%s.resourceClaims[%d]: must have exactly one of deviceClassName, resourceClaimName and resourceClaimTemplateName" $path $index | println -}}
{{- end -}}
{{- if and $claim.resourceClaimName (gt (int (include "rein.podCount" $model)) 1) -}}
{{- printf "%s.resourceClaims[%d].resourceClaimName: all pods would share its devices; use a template" $path $index | println -}}
{{- end -}}
{{- if ne (hasKey $claim "deviceClassName") (hasKey $claim "count") -}}
{{- printf "%s.resourceClaims[%d].count: belongs to deviceClassName; set both or none" $path $index | println -}}
{{- end -}}
{{- if $claim.deviceClassName -}}{{- $claimed = add $claimed (int $claim.count) -}}{{- end -}}
{{- end -}}
{{- if and $claimed (lt (int $claimed) (len $model.devices)) -}}
{{- printf "%s.resourceClaims: ask for %d devices, but %s.devices has %d" $path $claimed $path (len $model.devices) | println -}}
{{- end -}}
{{- end -}}

{{/* Whether the model fits, as far as the values say how large it is. */}}
{{- define "rein.checkMemory" -}}
{{- $path := .path -}}
{{- $model := .model -}}
{{- $limit := dig "limits" "memory" "" $model.resources -}}
{{- $shm := include "rein.shm" $model -}}
{{- if and $shm (not $limit) -}}
{{- printf "%s.resources.limits.memory: must be set: /dev/shm (%s) takes its memory from it" $path $shm | println -}}
{{- end -}}
{{- with $model.capacity -}}
{{- $room := dig "expertRoom" "0" . -}}
{{- $weights := int64 (include "rein.mebibytes" .weights) -}}
{{- $moves := int64 (include "rein.mebibytes" $room) -}}
{{- $context := dig "max-context" 0 $model.options -}}
{{- if not $context -}}
{{- printf "%s.options.max-context: must be set, since %s.capacity states how much memory a token needs" $path $path | println -}}
{{- else if and (eq $model.engine "cuda") (not .deviceMemory) -}}
{{- printf "%s.capacity.deviceMemory: must be set with engine cuda: the memory of one GPU" $path | println -}}
{{- else -}}
{{- $cache := int64 (ceil (divf (mulf (float64 $context) (float64 .tokenBytes)) 1048576.0)) -}}
{{- if eq $model.engine "cuda" -}}
{{- $device := int64 (include "rein.mebibytes" .deviceMemory) -}}
{{/* The KV cache gets nine tenths of what the weights leave; the rest is for activations. */}}
{{- $free := int64 (floor (mulf (float64 (sub $device (add $weights $moves))) 0.9)) -}}
{{- if gt $cache $free -}}
{{- printf "%s.capacity: does not fit: a context of %d tokens needs %d MiB, but weights (%s) and moving experts (%s) leave %d MiB of %s for the KV cache" $path (int64 $context) $cache .weights $room $free .deviceMemory | println -}}
{{- end -}}
{{- else -}}
{{- $memory := int64 (include "rein.mebibytes" (default "0" $limit)) -}}
{{- $peak := int64 (ceil (mulf (float64 $weights) 1.05)) -}}
{{- $ranks := len $model.devices -}}
{{- $need := add (mul $ranks (add $peak $cache $moves)) (int64 (include "rein.mebibytes" (default "0" $shm))) -}}
{{- if gt $need $memory -}}
{{- printf "%s.resources.limits.memory: does not fit: %d ranks need %d MiB for weights while loading, moving experts and a context of %d tokens, got %s" $path $ranks $need (int64 $context) (default "none" $limit) | println -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $shm $limit (ge (int64 (include "rein.mebibytes" $shm)) (int64 (include "rein.mebibytes" $limit))) -}}
{{- printf "%s.shm: must be less than %s.resources.limits.memory (%s), from which it takes its memory, got %s" $path $path $limit $shm | println -}}
{{- end -}}
{{- end -}}

{{- define "rein.checkAutoscaling" -}}
{{- $path := .path -}}
{{- $model := .model -}}
{{- $scaling := $model.autoscaling -}}
{{- if ne $scaling.type "none" -}}
{{- if and (gt (int $model.podsPerGroup) 1) (ne $model.workload "lws") -}}
{{- printf "%s.autoscaling.type: groups of several pods can be scaled with workload lws only" $path | println -}}
{{- end -}}
{{- if gt (int $model.spares) 0 -}}
{{- printf "%s.spares: must be 0 with autoscaling, got %d: a spare would count as a group" $path (int $model.spares) | println -}}
{{- end -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- printf "%s.autoscaling.minReplicas: must be at most maxReplicas (%d), got %d" $path (int $scaling.maxReplicas) (int $scaling.minReplicas) | println -}}
{{- end -}}
{{- if and (eq $scaling.type "hpa") (eq (int $scaling.minReplicas) 0) -}}
{{- printf "%s.autoscaling.minReplicas: must be at least 1 with type hpa; keda scales to 0" $path | println -}}
{{- end -}}
{{- if and (eq $scaling.type "keda") (not $scaling.prometheus) -}}
{{- printf "%s.autoscaling.prometheus: must be the URL of the Prometheus that KEDA asks" $path | println -}}
{{- end -}}
{{- end -}}
{{- end -}}
