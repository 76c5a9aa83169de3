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
{{ include "rein.clusterFlags" . }}
{{ include "rein.peerFlags" . }}
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
