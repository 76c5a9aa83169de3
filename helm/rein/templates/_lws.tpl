{{/* A LeaderWorkerSet: one group of pods for each replica. dict root, model, name */}}
{{- define "rein.leaderWorkerSet" -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ .name }}
  labels:
    {{- include "rein.labels" (dict "root" .root "component" "worker" "model" .model.name) | nindent 4 }}
spec:
  {{- if eq .model.autoscaling.type "none" }}
  replicas: {{ include "rein.number" .model.groups }}
  {{- end }}
  # All pods load at once: followers do not wait until the leader pod is ready.
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxUnavailable: 1
      maxSurge: 0
  leaderWorkerTemplate:
    size: {{ include "rein.number" .model.podsPerGroup }}
    # The default recreates all pods of a group when one fails, and throws away the weights that the others keep.
    restartPolicy: None
    workerTemplate:
      {{- include "rein.workerPod" (merge (dict "domain" "$(GROUP_KEY)") .) | nindent 6 }}
{{- end -}}
