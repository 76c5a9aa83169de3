{{/* The pod of a worker. Most templates take dict root, model, domain (the value of --domain, or nothing). */}}

{{- define "rein.workerFlags" -}}
{{- $root := .root }}
{{- $model := .model }}
- worker
{{ include "rein.clusterFlags" $root }}
{{ include "rein.peerFlags" $root }}
- {{ printf "--model=%s" (include "rein.modelDirectory" $model) | quote }}
- {{ printf "--served-name=%s" (include "rein.servedName" $model) | quote }}
- --engine={{ $model.engine }}
- {{ printf "--devices=%s" (join "," $model.devices) | quote }}
- --group-size={{ include "rein.number" $model.ranks }}
{{- with .domain }}
- {{ printf "--domain=%s" . | quote }}
{{- end }}
- {{ printf "--listen=%s:7000" (include "rein.any" $root) | quote }}
- {{ printf "--mesh=%s:7001" (include "rein.any" $root) | quote }}
- {{ printf "--http=%s:7002" (include "rein.any" $root) | quote }}
- --advertise=$(POD_IP)
{{ include "rein.flags" (default dict $model.options) }}
{{- end -}}

{{- define "rein.modelDirectory" -}}
{{- $source := .source -}}
{{- if $source.inImage -}}{{ $source.inImage.path }}
{{- else if $source.hub -}}{{ include "rein.hubModel" $source.hub }}
{{- else if $source.init -}}/weights/{{ $source.init.revision }}
{{- else if dig "pvc" "path" "" $source -}}/weights/{{ trimPrefix "/" $source.pvc.path }}
{{- else if dig "image" "path" "" $source -}}/weights/{{ trimPrefix "/" $source.image.path }}
{{- else -}}/weights
{{- end -}}
{{- end -}}

{{/* GPUs that the pod asks for as an extended resource. */}}
{{- define "rein.gpus" -}}
{{- if and (eq .engine "cuda") (not .resourceClaims) -}}{{ len .devices }}{{- end -}}
{{- end -}}

{{- define "rein.shm" -}}
{{- default (ternary "8Gi" "" (eq .engine "cuda")) .shm -}}
{{- end -}}

{{- define "rein.workerResources" -}}
{{- $resources := deepCopy (default dict .resources) }}
{{- $extra := dict }}
{{- with include "rein.gpus" . }}
{{- $_ := set $extra "nvidia.com/gpu" . }}
{{- end }}
{{- with .rdma }}
{{- $_ := set $extra .resource (include "rein.number" .count) }}
{{- end }}
{{- if $extra }}
{{- $_ := set $resources "limits" (merge $extra (default dict $resources.limits)) }}
{{- end }}
{{- with .resourceClaims }}
{{- $claims := list }}
{{- range . }}
{{- $claims = append $claims (dict "name" .name) }}
{{- end }}
{{- $_ := set $resources "claims" $claims }}
{{- end }}
{{- toYaml $resources }}
{{- end -}}

{{/* Copies the weights into a directory of this pod and renames it when the command has ended. So a restart finds the
place and copies nothing, and a cut copy is never in it. The image needs a shell, mkdir, mv, rm and touch. */}}
{{- define "rein.copyScript" -}}
set -eu
if [ -f "$REIN_WEIGHTS_PLACE/.complete" ]; then
  echo "weights: $REIN_WEIGHTS_PLACE is complete, nothing to copy"
  exit 0
fi
if [ -e "$REIN_WEIGHTS_PLACE" ]; then
  echo "weights: $REIN_WEIGHTS_PLACE was not made by this script (.complete is missing): delete it" >&2
  exit 1
fi
rm -rf "$REIN_WEIGHTS"
mkdir -p "$REIN_WEIGHTS"
"$@"
touch "$REIN_WEIGHTS/.complete"
# Another pod of this node may have been faster.
[ -e "$REIN_WEIGHTS_PLACE" ] || mv "$REIN_WEIGHTS" "$REIN_WEIGHTS_PLACE"
rm -rf "$REIN_WEIGHTS" "$REIN_WEIGHTS_PLACE/${REIN_WEIGHTS##*/}"
{{- end -}}

{{- define "rein.initContainer" -}}
{{- $init := .model.source.init }}
- name: weights
  image: {{ $init.image }}
  {{- with $init.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  command:
    - {{ default "/bin/sh" $init.shell }}
    - -c
    - |
      {{- include "rein.copyScript" . | nindent 6 }}
    - weights
    {{- toYaml $init.command | nindent 4 }}
  env:
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    - name: REIN_WEIGHTS_PLACE
      value: /weights/{{ $init.revision }}
    # Where the command has to write.
    - name: REIN_WEIGHTS
      value: /weights/.incoming-$(POD_NAME)
    - name: HOME
      value: /tmp
    {{- with $init.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $init.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml (default dict $init.resources) | nindent 4 }}
  securityContext:
    {{- include "rein.containerSecurity" (dict "readOnly" true "rdma" false) | nindent 4 }}
  volumeMounts:
    - name: weights
      mountPath: /weights
    - name: tmp
      mountPath: /tmp
{{- end -}}

{{/* The name of a model of the Hub, with its revision. */}}
{{- define "rein.hubModel" -}}
{{- .model }}{{ with .revision }}@{{ . }}{{ end -}}
{{- end -}}

{{/* Finds what rein.hubContainer has downloaded. */}}
{{- define "rein.hubEnvironment" -}}
- name: HF_HUB_CACHE
  value: /weights
- name: HF_HUB_OFFLINE
  value: "1"
{{- end -}}

{{/* Downloads a model of the Hub into the volume `weights`, or finds it there: dict root, hub, image, textOnly. Pods
that share the volume download each file once. */}}
{{- define "rein.hubContainer" -}}
{{- $hub := .hub }}
- name: weights
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    - pull
    - {{ include "rein.hubModel" $hub | quote }}
    {{- if .textOnly }}
    - --text-only
    {{- end }}
  env:
    {{- include "rein.environment" .root | nindent 4 }}
    - name: HF_HUB_CACHE
      value: /weights
    {{- with $hub.endpoint }}
    - name: HF_ENDPOINT
      value: {{ . | quote }}
    {{- end }}
    {{- with $hub.token }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ .secretName }}
          key: {{ default "token" .secretKey }}
    {{- end }}
    {{- with $hub.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources:
    {{- toYaml (default dict $hub.resources) | nindent 4 }}
  securityContext:
    {{- include "rein.containerSecurity" (dict "readOnly" true "rdma" false) | nindent 4 }}
  volumeMounts:
    - name: weights
      mountPath: /weights
{{- end -}}

{{- define "rein.workerMounts" -}}
{{ include "rein.clusterMounts" .root }}
{{ include "rein.peerMounts" .root }}
{{- if not .model.source.inImage }}
- name: weights
  mountPath: /weights
  readOnly: true
{{- end }}
{{- if include "rein.shm" .model }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- if eq .model.engine "cuda" }}
- name: tmp
  mountPath: /tmp
{{- end }}
{{- end -}}

{{/* The volume of a source, unless it is filled by an init container. */}}
{{- define "rein.sourceVolume" -}}
{{- with .hostPath }}
- name: weights
  hostPath:
    path: {{ .path }}
    type: Directory
{{- end }}
{{- with .pvc }}
- name: weights
  persistentVolumeClaim:
    claimName: {{ .claimName }}
    readOnly: true
{{- end }}
{{- with .image }}
- name: weights
  image:
    reference: {{ .reference }}
    {{- with .pullPolicy }}
    pullPolicy: {{ . }}
    {{- end }}
{{- end }}
{{- end -}}

{{/* The volume that an init container fills. A claimTemplate's is the StatefulSet's. */}}
{{- define "rein.filledVolume" -}}
{{- with .emptyDir }}
- name: weights
  emptyDir:
    sizeLimit: {{ .sizeLimit }}
{{- end }}
{{- with .hostPath }}
- name: weights
  hostPath:
    path: {{ .path }}
    type: DirectoryOrCreate
{{- end }}
{{- with .pvc }}
- name: weights
  persistentVolumeClaim:
    claimName: {{ .claimName }}
{{- end }}
{{- end -}}

{{- define "rein.workerVolumes" -}}
{{- $source := .model.source }}
{{ include "rein.clusterVolumes" .root }}
{{ include "rein.peerVolumes" .root }}
{{ include "rein.sourceVolume" $source }}
{{ include "rein.filledVolume" (dig "volume" dict (default $source.hub $source.init | default dict)) }}
{{- with include "rein.shm" .model }}
# Its pages count in the container's memory limit.
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . }}
{{- end }}
{{- if or (eq .model.engine "cuda") $source.init }}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
{{- end }}
{{- end -}}

{{- define "rein.workerPod" -}}
{{- $root := .root -}}
{{- $model := .model -}}
metadata:
  {{- include "rein.podMetadata" (dict "root" $root "component" "worker" "model" $model.name "labels" .labels) | nindent 2 }}
spec:
  {{- include "rein.podSecurity" $root | nindent 2 }}
  # Leaving takes up to 40 s, then a few seconds to close the engine and its connections.
  terminationGracePeriodSeconds: 60
  {{- with $model.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if $model.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with include "rein.lines" (include "rein.scheduling" $model) }}{{ . | nindent 2 }}{{ end }}
  {{- with $model.resourceClaims }}
  resourceClaims:
    {{- range . }}
    - name: {{ .name }}
      {{- if .resourceClaimName }}
      resourceClaimName: {{ .resourceClaimName }}
      {{- else }}
      resourceClaimTemplateName: {{ default (printf "%s-%s-%s" (include "rein.fullname" $root) $model.name .name) .resourceClaimTemplateName }}
      {{- end }}
    {{- end }}
  {{- end }}
  {{- $image := include "rein.image" (dict "image" (default $root.Values.image $model.image) "root" $root) }}
  {{- if $model.source.init }}
  initContainers:
    {{- include "rein.lines" (include "rein.initContainer" .) | nindent 4 }}
  {{- end }}
  {{- with $model.source.hub }}
  initContainers:
    {{- include "rein.lines" (include "rein.hubContainer" (dict "root" $root "hub" . "image" $image)) | nindent 4 }}
  {{- end }}
  containers:
    - name: worker
      image: {{ $image }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        {{- include "rein.lines" (include "rein.workerFlags" .) | nindent 8 }}
      env:
        {{- include "rein.environment" $root | nindent 8 }}
        {{- with include "rein.lines" (include "rein.tracing" $root) }}{{ . | nindent 8 }}{{ end }}
        {{- if eq (toString .domain) "$(GROUP_KEY)" }}
        - name: GROUP_KEY
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/group-key']
        {{- end }}
        {{- if $model.source.hub }}
        {{- include "rein.hubEnvironment" . | nindent 8 }}
        {{- end }}
        {{- if eq $model.engine "cuda" }}
        # Kernels that the driver has compiled.
        - name: CUDA_CACHE_PATH
          value: /tmp/cuda
        {{- end }}
        {{- with $model.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: engine
          containerPort: 7000
        - name: mesh
          containerPort: 7001
        - name: admin
          containerPort: 7002
      # No startup probe: loading is not death.
      readinessProbe:
        {{- include "rein.probe" (dict "path" "/ready" "port" "admin") | nindent 8 }}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      livenessProbe:
        {{- include "rein.probe" (dict "path" "/health" "port" "admin") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources:
        {{- include "rein.workerResources" $model | nindent 8 }}
      securityContext:
        {{- include "rein.containerSecurity" (dict "readOnly" (dig "readOnlyRootFilesystem" $root.Values.security.readOnlyRootFilesystem $model) "rdma" $model.rdma) | nindent 8 }}
      {{- with include "rein.list" (dict "key" "volumeMounts" "lines" (include "rein.workerMounts" .)) }}{{ . | nindent 6 }}{{ end }}
  {{- with include "rein.list" (dict "key" "volumes" "lines" (include "rein.workerVolumes" .)) }}{{ . | nindent 2 }}{{ end }}
{{- end -}}

{{/* A StatefulSet of workers: dict root, model, name, replicas (empty: something scales it), domain, held (its pods
keep the template that they have), together (pods that may be replaced at once). */}}
{{- define "rein.workerSet" -}}
{{- $of := dict "root" .root "component" "worker" "model" .model.name -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .name }}
  labels:
    {{- include "rein.labels" $of | nindent 4 }}
spec:
  {{- if .replicas }}
  replicas: {{ .replicas }}
  {{- end }}
  serviceName: {{ include "rein.fullname" .root }}-workers
  # A group needs all of its workers to load.
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      {{- include "rein.selector" $of | nindent 6 }}
      rein/set: {{ .name }}
  updateStrategy:
    type: RollingUpdate
    {{- $waits := and (gt (int .together) 1) (semverCompare ">=1.37.0-0" .root.Capabilities.KubeVersion.Version) }}
    {{- if or .held $waits }}
    rollingUpdate:
      {{- if .held }}
      partition: {{ .replicas }}
      {{- end }}
      {{- if $waits }}
      # The pods of a group are replaced together: without one of them, the others serve nothing.
      maxUnavailable: {{ .together }}
      {{- end }}
    {{- end }}
  template:
    {{- include "rein.workerPod" (merge (dict "labels" (dict "rein/set" .name)) .) | nindent 4 }}
  {{- with dig "volume" "claimTemplate" dict (default .model.source.hub .model.source.init | default dict) }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: Delete
    whenScaled: Retain
  volumeClaimTemplates:
    - metadata:
        name: weights
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .size }}
  {{- end }}
{{- end -}}
