use super::rewrite;

#[test]
fn sources_are_rewritten() {
    for (from, to) in [
        ("{% for x in xs %}", "{% for x in ( xs )|__iterate %}{% do __check_time() %}"),
        ("{%- for x in xs -%}", "{%- for x in ( xs )|__iterate %}{% do __check_time() -%}"),
        (
            "{% for k, v in d.items() if k in ok +%}",
            "{% for k, v in ( d.items() )|__iterate if __check_time() and k in ok %}{% do __check_time() +%}",
        ),
        (
            "{% for x in a['in %}'] recursive %}",
            "{% for x in ( a['in %}'] )|__iterate recursive %}{% do __check_time() %}",
        ),
        ("{% for x in [1 if y else 2] %}", "{% for x in ( [1 if y else 2] )|__iterate %}{% do __check_time() %}"),
        ("{% for x in s.if_ %}", "{% for x in ( s.if_ )|__iterate %}{% do __check_time() %}"),
        ("{%- generation -%}a{%- endgeneration %}", "{%- with -%}a{%- endwith %}"),
        ("{# {% for x in y %} #}{{ '{% for x in y %}' }}", "{# {% for x in y %} #}{{ '{% for x in y %}' }}"),
        ("{% raw %}{% for x in y %}{%- endraw -%}", "{% raw +%}{% for x in y %}{%- endraw -%}"),
        (
            "{{ {'a': {'b': 1}}}}{% for x in y %}",
            "{{ {'a': {'b': 1}}}}{% for x in ( y )|__iterate %}{% do __check_time() %}",
        ),
        ("a\r\nb\rc", "a\nb\nc"),
        ("{{ +1 + +2 }}{{ a + 'b' }}{{- x +}}", "{{ 1 + 2 }}{{ a + 'b' }}{{- x +}}"),
        ("{{ '%s' % (a, 'b') ~ c }}", "{{ __modulo('%s', (a, 'b')) ~ c }}"),
        ("{{ '%s' % -x|abs if y else x % 2 }}", "{{ __modulo('%s', -x|abs) if y else x % 2 }}"),
        (
            "{%- macro m(a, b='x') -%}{{ varargs }}{%- endmacro -%}",
            "{%- macro m(a, b='x', varargs=[], kwargs={}) -%}{{ varargs }}{%- endmacro -%}{% set m = __variadic(m, ['a', 'b']) -%}",
        ),
        ("{% macro m(a) %}{{ a }}{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}"),
        ("{% for x in y", "{% for x in y"),
        ("{{ a.b[c][::-1].items }}", "{{ __attribute(__slice(a.b[c], none, none, -1), 'items') }}"),
        ("{{ a.items() ~ x[1:] * 2 }}", "{{ a.items() ~ __slice(x, 1, none, none) * 2 }}"),
        ("{{ m.content[:-3] }}", "{{ __slice(m.content, none, -3, none) }}"),
        ("{{ f[x.keys:1:2] }}", "{{ __slice(f, __attribute(x, 'keys'), 1, 2) }}"),
        ("{{ '  ' * (n - 1) }}{{ 2 * n }}", "{{ __repeat('  ', (n - 1)) }}{{ 2 * n }}"),
        ("{{ a + 'b' + c }}{{ x|safe }}", "{{ __add(__add(a, 'b'), c) }}{{ x|safe }}"),
        (r"{{ 'a\x41\/\'\\\n\v' 'b' }}", "{{ 'aA\\\\/\\'\\\\\\n\u{b}' 'b' }}"),
        ("{{ 'a\\\nb' }}", "{{ 'ab'\n }}"),
        ("{{ 1, 2 }}", "{{ (1, 2) }}"),
        ("{{ x['items'].a[\"keys\"]['k'] }}", "{{ __item(__item(x, 'items').a, 'keys')['k'] }}"),
        ("{% with a = 1, b = a %}", "{% with (a, b) = (1, a) %}"),
        (
            "{% macro m() %}{% set n.a = 1 %}{% endmacro %}",
            "{% macro m() %}{% set n.a = (1) if true else n %}{% endmacro %}",
        ),
    ] {
        assert_eq!(rewrite(from).as_deref(), Ok(to));
    }
}
