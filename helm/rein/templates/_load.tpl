{{/* The load of a model, by which its groups are scaled. */}}

{{/* Labels that select the metrics of this release's routers: dict root, model (a name). */}}
{{- define "rein.loadLabels" -}}
{{- $labels := dict "namespace" .root.Release.Namespace "service" (printf "%s-router" (include "rein.fullname" .root)) }}
{{- range include "rein.models" .root | fromJsonArray }}
{{- if and (eq .name $.model) .autoscaling.metricLabels }}
{{- $labels = .autoscaling.metricLabels }}
{{- end }}
{{- end }}
{{- toYaml $labels }}
{{- end -}}

{{- define "rein.loadQuery" -}}
{{- $served := "" }}
{{- range include "rein.models" .root | fromJsonArray }}
{{- if eq .name $.model }}
{{- $served = include "rein.servedName" . }}
{{- end }}
{{- end }}
{{- $matchers := list (printf "model=%q" $served) }}
{{- range $name, $value := include "rein.loadLabels" . | fromYaml }}
{{- $matchers = append $matchers (printf "%s=%q" $name $value) }}
{{- end }}
{{- $labels := join "," $matchers -}}
sum(rein_model_requests_waiting{ {{- $labels -}} }) + sum(rein_model_requests_running{ {{- $labels -}} })
{{- end -}}

{{/* Groups leave one at a time: each drains, and its streams resume on the others. */}}
{{- define "rein.scaleDown" -}}
scaleDown:
  stabilizationWindowSeconds: {{ min 3600 (int .cooldownSeconds) }}
  policies:
    - type: Pods
      value: 1
      periodSeconds: 120
{{- end -}}
