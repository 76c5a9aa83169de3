{{/* The models with the defaults filled in, as a JSON array. */}}
{{- define "rein.models" -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $model := mergeOverwrite (deepCopy $.Values.modelDefaults) (deepCopy .) -}}
{{- if not $model.ranks -}}{{- $_ := set $model "ranks" (mul $model.podsPerGroup (len $model.devices)) -}}{{- end -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- toJson $models -}}
{{- end -}}

{{/* The controller keeps one number of spares for every model; rein.checks refuses values that differ. */}}
{{- define "rein.spares" -}}
{{- $spares := 0 -}}
{{- range include "rein.models" . | fromJsonArray -}}
{{- $spares = max $spares (int .spares) -}}
{{- end -}}
{{- $spares -}}
{{- end -}}

{{/* Pods of a model: dict of it. */}}
{{- define "rein.podCount" -}}
{{- add (mul (int .groups) (int .podsPerGroup)) (int .spares) -}}
{{- end -}}
