{{/* The router's grace period: the sleep before SIGTERM, the drain, and 10 s to close connections. */}}
{{- define "rein.routerGrace" -}}
{{- add (int .Values.router.preStopSeconds) (int .Values.router.drainSeconds) 10 -}}
{{- end -}}

{{/* Models that may have no pods: their requests wait for the first one. */}}
{{- define "rein.expected" -}}
{{- $names := list -}}
{{- range include "rein.models" . | fromJsonArray -}}
{{- if and (eq .autoscaling.type "keda") (eq (int .autoscaling.minReplicas) 0) -}}
{{- $names = append $names (include "rein.servedName" .) -}}
{{- end -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{- define "rein.routerArgs" -}}
- router
{{- if .Values.front.engines }}
{{- range .Values.front.engines }}
- {{ printf "--engine=%s" . | quote }}
{{- end }}
- {{ printf "--model=%s" (include "rein.modelDirectory" (dict "source" .Values.front.model)) | quote }}
{{- with .Values.front.servedName }}
- {{ printf "--served-name=%s" . | quote }}
{{- end }}
{{- if .Values.front.ca.secretName }}
- --engine-ca=/etc/rein/engine-ca/ca.crt
{{- end }}
{{- else }}
{{ include "rein.clusterFlags" . }}
{{ include "rein.peerFlags" . }}
{{- end }}
- {{ printf "--http=%s:8000" (include "rein.any" .) | quote }}
- {{ printf "--grpc=%s:50051" (include "rein.any" .) | quote }}
- --drain-seconds={{ include "rein.number" .Values.router.drainSeconds }}
{{- with include "rein.expected" . }}
- {{ printf "--expect=%s" . | quote }}
{{- end }}
{{- if .Values.publicTls.enabled }}
- --tls-cert=/etc/rein/public/tls.crt
- --tls-key=/etc/rein/public/tls.key
{{- end }}
{{- if .Values.apiKeys.secretName }}
- --api-keys=/etc/rein/api-keys/keys.toml
{{- end }}
{{ include "rein.flags" .Values.router.options }}
{{- end -}}

{{- define "rein.routerMounts" -}}
{{ include "rein.clusterMounts" . }}
{{ include "rein.peerMounts" . }}
- name: tmp
  mountPath: /tmp
{{- if and .Values.front.engines (not .Values.front.model.inImage) }}
- name: weights
  mountPath: /weights
  readOnly: true
{{- end }}
{{- if and .Values.front.engines .Values.front.ca.secretName }}
- name: engine-ca
  mountPath: /etc/rein/engine-ca
  readOnly: true
{{- end }}
{{- if .Values.publicTls.enabled }}
- name: public
  mountPath: /etc/rein/public
  readOnly: true
{{- end }}
{{- if .Values.apiKeys.secretName }}
- name: api-keys
  mountPath: /etc/rein/api-keys
  readOnly: true
{{- end }}
{{- end -}}

{{- define "rein.routerVolumes" -}}
{{ include "rein.clusterVolumes" . }}
{{ include "rein.peerVolumes" . }}
{{- if .Values.front.engines }}
{{ include "rein.sourceVolume" .Values.front.model }}
{{- if .Values.front.model.hub }}
{{ include "rein.filledVolume" (dict "emptyDir" (dict "sizeLimit" "1Gi")) }}
{{- end }}
{{- with .Values.front.ca.secretName }}
- name: engine-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: {{ $.Values.front.ca.secretKey }}
        path: ca.crt
{{- end }}
{{- end }}
# Templates and tokenizers, which routers fetch from workers.
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
{{- if .Values.publicTls.enabled }}
- name: public
  secret:
    secretName: {{ include "rein.publicSecret" . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.apiKeys.secretName }}
- name: api-keys
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: {{ $.Values.apiKeys.secretKey }}
        path: keys.toml
{{- end }}
{{- end -}}
