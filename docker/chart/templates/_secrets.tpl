{{- /* What wraps a party's keys, and files that its user alone may read. Of each template's dictionary: own and values, as in _party.tpl. */ -}}

{{- /* Secrets by the name of the file that the party reads in /private. A Secret's own files may be read by the pod's group, which is refused. */ -}}
{{- define "maskedlark.private" -}}
{{- $files := dict }}
{{- with (.own.keeper).pinSecret }}{{ $_ := set $files "pin" . }}{{ end }}
{{- if (.own.dashboard).enabled }}{{ with .own.dashboard.oidc.secret }}{{ $_ := set $files "client-secret" . }}{{ end }}{{ end }}
{{- toYaml $files }}
{{- end }}

{{- define "maskedlark.keeper-variables" -}}
{{- with .own.keeper }}
{{- if hasPrefix "pkcs11:" .with }}
- { name: MASKEDLARK_PKCS11_MODULE, value: {{ required (printf "%s.keeper.module: the absolute path of the token's library in the image" $.values) .module | quote }} }
{{- $_ := required (printf "%s.keeper.pinSecret: a Secret whose entry pin is the token's PIN" $.values) .pinSecret }}
- { name: MASKEDLARK_PKCS11_PIN_FILE, value: /private/pin }
{{- else }}
- { name: MASKEDLARK_KEY_COMMAND, value: {{ required (printf "%s.keeper.program: the absolute path of the program in the image" $.values) .program | quote }} }
{{- end }}
{{- range $name, $value := .env }}
- { name: {{ $name }}, value: {{ $value | quote }} }
{{- end }}
{{- end }}
{{- end }}

{{- /* Keys are made and wrapped in memory: the volume never holds them in plaintext. */ -}}
{{- define "maskedlark.first-keys" -}}
{{- $variable := upper .party -}}
{{- $command := ternary "lark-helper" .party (eq .party "helper") -}}
made={{ ternary "/tmp/new" "\"$data.new\"" (not (empty .own.keeper)) }}; rm -rf "$data.new" "$made"; mkdir "$made"
{{- if .own.keysSecret }}
for one in /keys/*; do cp -L "$one" "$made/"; done
{{- else }}
{{ $variable }}_DATA="$made" {{ $command }} keygen "$@" > "$made/keygen.txt"
{{- end }}
{{- with .own.keeper }}
{{- if eq $.party "helper" }}
{{ $command }} keys wrap --data "$made" --with '{{ .with }}' >&2
{{- end }}
{{ $command }} certificate wrap --data "$made" --with '{{ .with }}' >&2
cp -rp "$made" "$data.new"; rm -r "$made"
{{- end }}
mv "$data.new" "$data"
{{- end }}
