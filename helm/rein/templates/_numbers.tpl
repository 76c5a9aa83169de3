{{/* Numbers and quantities. Values arrive as floats, which Go prints as 1e+06. */}}

{{- define "rein.number" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* A Kubernetes quantity in MiB, rounded down; the schema has checked its form. */}}
{{- define "rein.mebibytes" -}}
{{- $text := include "rein.number" . -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $bytes := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- int64 (floor (divf (mulf $number (get $bytes $unit)) 1048576.0)) -}}
{{- end -}}

{{/* Options as in a config file of `rein`: a list of flags, sorted by name. */}}
{{- define "rein.flags" -}}
{{- range $name := keys . | sortAlpha }}
{{- $value := get $ $name }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- --{{ $name }}
{{- end }}
{{- else }}
- {{ printf "--%s=%s" $name (include "rein.number" $value) | quote }}
{{- end }}
{{- end }}
{{- end -}}
