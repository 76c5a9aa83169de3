{{/* What the pods of all processes of `rein` share: security, environment, the way to etcd, peer certificates. */}}

{{- define "rein.podSecurity" -}}
automountServiceAccountToken: false
# Service links would set variables such as REIN_PORT.
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ include "rein.number" .Values.security.runAsUser }}
  runAsGroup: {{ include "rein.number" .Values.security.runAsUser }}
  fsGroup: {{ include "rein.number" .Values.security.runAsUser }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{/* dict readOnly, rdma */}}
{{- define "rein.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ .readOnly }}
capabilities:
  drop: [ALL]
  {{- if .rdma }}
  # RDMA pins memory.
  add: [IPC_LOCK]
  {{- end }}
{{- end -}}

{{- define "rein.environment" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: REIN_LOG
  value: {{ .Values.log.level | quote }}
- name: REIN_LOG_FORMAT
  value: {{ .Values.log.format | quote }}
{{- end -}}

{{/* Routers and workers send traces; controllers have none. */}}
{{- define "rein.tracing" -}}
{{- with .Values.tracing.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ include "rein.number" $.Values.tracing.share | quote }}
{{- end }}
{{- end -}}

{{- define "rein.etcdEndpoints" -}}
{{- if .Values.etcd.trial -}}
{{- include "rein.fullname" . }}-etcd:2379
{{- else -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end -}}

{{- define "rein.clusterFlags" -}}
- {{ printf "--etcd=%s" (include "rein.etcdEndpoints" .) | quote }}
- {{ printf "--cluster=%s" (include "rein.cluster" .) | quote }}
- --id=$(POD_NAME)
{{- with .Values.etcd.tls.secretName }}
- --etcd-ca=/etc/rein/etcd-tls/ca.crt
{{- if $.Values.etcd.tls.clientCertificate }}
- --etcd-cert=/etc/rein/etcd-tls/tls.crt
- --etcd-key=/etc/rein/etcd-tls/tls.key
{{- end }}
{{- with $.Values.etcd.tls.serverName }}
- {{ printf "--etcd-name=%s" . | quote }}
{{- end }}
{{- end }}
{{- with .Values.etcd.auth.user }}
- {{ printf "--etcd-user=%s" . | quote }}
- --etcd-password-file=/etc/rein/etcd-password/password
{{- end }}
{{- end -}}

{{- define "rein.peerFlags" -}}
{{- if .Values.peerTls.enabled }}
- --peer-ca=/etc/rein/peer/ca.crt
- --peer-cert=/etc/rein/peer/tls.crt
- --peer-key=/etc/rein/peer/tls.key
- {{ printf "--peer-name=%s" .Values.peerTls.dnsName | quote }}
{{- end }}
{{- end -}}

{{/* Secrets are mounted as directories: a subPath would never see a renewed certificate. */}}
{{- define "rein.clusterMounts" -}}
{{- if .Values.etcd.tls.secretName }}
- name: etcd-tls
  mountPath: /etc/rein/etcd-tls
  readOnly: true
{{- end }}
{{- if .Values.etcd.auth.user }}
- name: etcd-password
  mountPath: /etc/rein/etcd-password
  readOnly: true
{{- end }}
{{- end -}}

{{- define "rein.clusterVolumes" -}}
{{- with .Values.etcd.tls.secretName }}
- name: etcd-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if .Values.etcd.auth.user }}
- name: etcd-password
  secret:
    secretName: {{ .Values.etcd.auth.secretName }}
    defaultMode: 0440
    items:
      - key: {{ .Values.etcd.auth.secretKey }}
        path: password
{{- end }}
{{- end -}}

{{- define "rein.peerMounts" -}}
{{- if .Values.peerTls.enabled }}
- name: peer
  mountPath: /etc/rein/peer
  readOnly: true
{{- end }}
{{- end -}}

{{- define "rein.peerSecret" -}}
{{- default (printf "%s-peer" (include "rein.fullname" .)) .Values.peerTls.secretName -}}
{{- end -}}

{{- define "rein.peerVolumes" -}}
{{- if .Values.peerTls.enabled }}
- name: peer
  secret:
    secretName: {{ include "rein.peerSecret" . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "rein.publicSecret" -}}
{{- default (printf "%s-public" (include "rein.fullname" .)) .Values.publicTls.secretName -}}
{{- end -}}

{{/* Where a pod runs: dict of nodeSelector, tolerations, affinity, priorityClassName. */}}
{{- define "rein.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* dict path, port, scheme */}}
{{- define "rein.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ .port }}
  {{- with .scheme }}
  scheme: {{ . }}
  {{- end }}
{{- end -}}

{{/* Text without blank lines, which includes leave behind. */}}
{{- define "rein.lines" -}}
{{- regexReplaceAll "\n[ \t]*(\n[ \t]*)*\n" (trim .) "\n" | replace "\n\n" "\n" -}}
{{- end -}}

{{/* A key with the lines below it, or nothing if there are none: dict key, lines. */}}
{{- define "rein.list" -}}
{{- with include "rein.lines" .lines -}}
{{ $.key }}:
{{ . | indent 2 }}
{{- end -}}
{{- end -}}
