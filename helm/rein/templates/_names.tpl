{{/* Names, labels and images. */}}

{{- define "rein.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "rein.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "rein.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "rein.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Two releases never share a cluster unless both name it. A namespace contains no dot, so the parts cannot run into
each other. */}}
{{- define "rein.cluster" -}}
{{- default (printf "%s.%s" .Release.Namespace (include "rein.fullname" .)) .Values.cluster -}}
{{- end -}}

{{/* What selects the pods of a component: dict root, component, and model if it is a worker of that model. */}}
{{- define "rein.selector" -}}
app.kubernetes.io/name: {{ include "rein.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
rein/model: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of objects. Pods have only the selector and values.podLabels, so that a new version of the chart alone
restarts nothing. */}}
{{- define "rein.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "rein.selector" . }}
{{- end -}}

{{- define "rein.podMetadata" -}}
labels:
  {{- include "rein.selector" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* dict image, root: the reference of an image; a digest replaces the tag. */}}
{{- define "rein.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The address on which a process listens for every address of its pod. */}}
{{- define "rein.any" -}}
{{- if eq .Values.ipFamily "IPv6" }}[::]{{ else }}0.0.0.0{{ end -}}
{{- end -}}

{{/* The name of a model in the API. */}}
{{- define "rein.servedName" -}}
{{- default .name .servedName -}}
{{- end -}}
