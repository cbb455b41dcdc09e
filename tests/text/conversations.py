"""Chat templates written for the tests: each uses constructs that real ones use, none is a real one."""

TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
             "{% if add_generation_prompt %}[assistant] {% endif %}\n",
    "whitespace": """
{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content']|trim -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = 'You are terse.' -%}
    {%- set rest = messages -%}
{%- endif -%}
<<SYS>>{{ system }}<</SYS>>
{% for m in rest %}
    {% if m.role == 'user' %}
USER: {{ m.content | trim }}
    {% elif m['role'] == 'assistant' %}
BOT: {{ m.content or '' }}{{ eos_token }}
    {% else %}
{{ m.role | upper }}: {{ m.content }}
    {% endif %}
{% endfor %}
   {%+ if add_generation_prompt +%}
BOT:
{%- endif %}

""",
    "alternation": "{{ bos_token }}{% for message in messages %}"
                   "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
                   "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
                   "{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
                   "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
                   "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "namespace": """{% set ns = namespace(last=-1, n=0, seen=[]) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% set ns.n = ns.n + 1 %}{% endif %}
{%- set ns.seen = ns.seen + [m.role] %}{% endfor %}
users={{ ns.n }} last={{ ns.last }} roles={{ ns.seen | unique | join(',') }}
{%- for m in messages[::-1] %}
{%- if not loop.first %}, {% endif %}{{ loop.index }}/{{ loop.length }}{{ '*' if loop.last else '' }}:{{ m.role }}
{%- endfor %}
{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{% if loop.index > 5 %}{% break %}{% endif %}
<{{ m.role }}>{{ m.content }}</{{ m.role }}>{{ loop.previtem.role if loop.previtem is defined else 'none' }}
{% endfor %}""",
    "tools": """{% macro type_of(spec) -%}
    {%- if spec.type is string -%}{{ spec.type }}
    {%- elif spec.type is iterable -%}{{ spec.type | join(' | ') }}
    {%- else -%}any{%- endif -%}
{%- endmacro %}
{% macro argument(name, spec, required=false) %}
- {{ name }}: {{ type_of(spec) }}{{ ' (required)' if required }}{% if spec.enum is defined %} one of {{ spec.enum | tojson }}{% endif %}
{% if spec.properties is mapping %}{% for k, v in spec.properties.items() %}{{ argument(k, v)|indent(2) }}{% endfor %}{% endif %}
{% endmacro %}
{%- if tools is not none and tools %}
# Tools
{% for tool in tools %}
## {{ tool.function.name }}{% if tool.function.description %}: {{ tool['function']['description'] }}{% endif %}

{%- for name, spec in tool.function.parameters.properties | dictsort %}
{{ argument(name, spec, required=name in (tool.function.parameters.required or [])) }}
{%- endfor %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}
{% endfor %}
{% elif tools is none %}(tools are none){% endif %}
{%- for m in messages %}
<|im_start|>{{ m.role }}
{{ m.content if m.content is not none else '' }}
{%- if m.tool_calls is defined and m.tool_calls %}
{%- for call in m.tool_calls %}
{%- if call.function is defined %}{% set call = call.function %}{% endif %}
<call>{"name": "{{ call.name }}", "arguments": {{ call.arguments if call.arguments is string else call.arguments | tojson }}}</call>
{%- endfor %}{% endif %}<|im_end|>
{%- endfor %}
""",
    "thinking": """{%- set enable_thinking = enable_thinking if enable_thinking is defined else true %}
{%- for m in messages %}
{%- set content = m.content if m.content is string else '' %}
{%- set thoughts = '' %}
{%- if m.reasoning_content is string %}{% set thoughts = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<' ~ m.role ~ '>' }}
{%- if thoughts and (loop.last or not loop.last and loop.index0 > 1) %}{{ '\\n(thinks: ' + thoughts.strip() + ')' }}{% endif %}
{{ content.lstrip('\\n') -}}
{{ '</' ~ m.role ~ '>' }}
{%- endfor %}
{%- if add_generation_prompt %}
<assistant>{% if not enable_thinking %}<think>

</think>{% endif %}
{% endif -%}
""",
    "filters": """{%- for m in messages if m.content is string %}
{{ m.content|upper }}|{{ m.content|lower }}|{{ m.content|length }}|{{ m.content|title }}|{{ m.content | capitalize }}
{{ m.content|replace('a', 'A')|trim }}|{{ m.content[:3] }}|{{ m.content[-2:] }}|{{ m.content[::2] }}
{{ m.content.split()|list }}|{{ m.content.startswith('T') }}|{{ m.content.endswith('?') }}|{{ m.content | default('x') }}
{{ m.missing | default('nothing') }}|{{ m.get('missing', 'dflt') }}|{{ m.get('role') }}|{{ (m.content | string)[0:1] }}
{{ m.content.find('i') }}|{{ m.content.count('l') }}|{{ m.content.replace('i', '!') }}|{{ m.content.title() }}
{%- endfor %}
{{ messages | map(attribute='role') | list | join('+') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | first }}
{{ (messages | last).role }}|{{ [3, 1, 2] | sort | join }}|{{ [3, 1, 2] | sort(reverse=true) | list }}|{{ [1, 2, 3] | sum }}
{{ [3, 1, 2] | max }}|{{ [3, 1, 2] | min }}|{{ [1, 2, 3] | reverse | list }}|{{ range(3) | list }}|{{ range(2, 8, 3) | list }}
{{ '7' | int + 1 }}|{{ 'x' | int }}|{{ ' 12 ' | int }}|{{ '3.9' | int }}|{{ 'y' | int(5) }}|{{ true | int }}|{{ '2.5' | float }}|{{ 'z' | float }}|{{ 3.7 | int }}|{{ -3 | abs }}|{{ 7 // 2 }}|{{ 7 % 3 }}|{{ 2 ** 5 }}|{{ 7 / 2 }}
{{ 'a' if true }}|{{ 'a' if false }}|{{ none }}|{{ true }}|{{ 1 == 1.0 }}|{{ 'b' in ['a', 'b'] }}|{{ 'c' not in 'abc' }}
{{ {'a': 1, 'b': [1, 2.0, 'x', none, true]} }}|{{ {'k': 'v'}.items() | list | length }}|{{ (1, 'two') }}|{{ [] }}|{{ {} }}
{{ 'tab\\t"quote" \\'single\\' é' }}|{{ "%s has %d" | format('x', 3) }}|{{ 'abc' | list }}|{{ 'a,b' .split(',') }}
{{ 1e22 }}|{{ 1e-7 }}|{{ 100000.0 }}|{{ 0.1 + 0.2 }}|{{ 1.0 | string }}|{{ 12345678901234567890 }}|{{ -0.0 }}
""",
    "date": "Today is {{ strftime_now('%d %B %Y, %A %H:%M') }}.{% if date_string is not defined %}"
            "{% set date_string = strftime_now('%Y-%m-%d') %}{% endif %} {{ date_string }}\n"
            "{% for m in messages %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{%- generation -%} A: {{ m.content }}"
                  "{%- endgeneration %}!{% else %}U: {{ m.content }}\n{% endif %}{% endfor %}"
                  "{% raw %}{% generation %}{{ not this }}{% endraw %}{# {% generation %} nor this #}",
    "json": "{{ messages | tojson }}\n{{ messages | tojson(indent=4) }}\n{{ messages | tojson(ensure_ascii=true) }}\n"
            "{{ messages | tojson(sort_keys=true) }}\n{{ messages | tojson(separators=(',', ':')) }}\n"
            "{{ {'b': 1, 'a': {'nested': [], 'empty': {}, 'float': 2.50, 'none': none}} | tojson(indent=2) }}",
    "scopes": """{% set x = 1 %}{% for i in [1, 2] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}
{% if true %}{% set x = 3 %}{% endif %}{{ x }}{% set block %}captured {{ x }} {% endset %}[{{ block }}]
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% else %}empty{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor %}{% filter upper %}shout {{ messages | length }}{% endfilter %}
{% macro m(a, b='B') %}({{ a }}{{ b }}{{ caller() if caller }}){% endmacro %}{{ m('x') }}{{ m(b='y', a='z') }}
{% call m('c') %}called{% endcall %}
{% for row in [[1, 2], [3, 4]] %}{% for v in row %}{{ loop.index }}:{{ v }} {% endfor %}{{ loop.index }}
{% endfor %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }} {{ undefined_name }}|{{ messages[99] }}
{% for i in range(4) recursive %}{{ i }}{% endfor %}{{ ['x'] * 3 }} {{ 'ab' * 2 }} {{ [1] + [2] }}
{{ loop is defined }} {{ 1 if x is odd else 2 }} {{ x is even }} {{ x is divisibleby 3 }} {{ x is number }} {{ 'x' is string }}
{{ messages is sequence }} {{ messages[0] is mapping }} {{ none is none }} {{ x is sameas 3 }} {{ x is in [3] }} {{ not x }}
""",
    "crlf": "first\r\n{% for m in messages %}\r\n{{ m.content }}\r\n{% endfor %}\rlast\r\n",
}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather. Use <city> & 'unit' \"quoted\" é 天気.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "e.g. \"Paris\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "minimum": 1},
        "where": {"type": "object", "properties": {"lat": {"type": "number", "default": 0.1}, "tags": {}}}}}}}
CLOCK = {"type": "function", "function": {
    "name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}, "required": []}}}


def user(text):
    return {"role": "user", "content": text}


def bot(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, id="call00001", name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": id, "name": name}


ARGUMENTS = {"city": "Zürich", "days": 3, "where": {"lat": 47.25, "deep": [[1, [2.0]]]}, "tags": ["a", "b<c>"], "n": None,
             "big": 123456789012345678, "small": 1e-7, "huge": 1e22, "one": 1.0, "minus": -0.0, "yes": True}
CONVERSATIONS = {  # name: (messages, options)
    "hello": ([user("Hello <b>world</b> & \"you\" 'me'")], {}),
    "system": ([system("You are helpful.\nBe brief."), user("Hi")], {}),
    "turns": ([system("S."), user("  Hi  \n"), bot("Hello! How can I help?"), user("Tell a joke\n\n"),
               bot("  Knock knock.  "), user("Who's there? 你好 😀")], {}),
    "no prompt": ([user("Hi"), bot("Hello!")], {"add_generation_prompt": False}),
    "thinking on": ([user("2+2?")], {"kwargs": {"enable_thinking": True, "reasoning_effort": "high"}}),
    "thinking off": ([user("2+2?")], {"kwargs": {"enable_thinking": False}}),
    "tools": ([system("You are helpful."), user("Weather in Paris?")], {"tools": [WEATHER, CLOCK]}),
    "one tool": ([user("Time?")], {"tools": [CLOCK]}),
    "no tools": ([user("Time?")], {"tools": []}),
    "call": ([user("Weather?"), bot("", tool_calls=[call("get_weather", ARGUMENTS)]), tool('{"temp": 21.5}')],
             {"tools": [WEATHER]}),
    "call as text": ([user("Weather?"), bot("", tool_calls=[call("get_weather", '{"city": "Rome"}')]), tool("sunny")], {}),
    "call without content": ([user("Weather?"), bot(None, tool_calls=[call("get_weather", {})]), tool("sunny"),
                              bot("It is sunny."), user("Thanks")], {"tools": [WEATHER]}),
    "two calls": ([user("Both?"), bot("Let me see.", tool_calls=[call("get_weather", {"city": "Rome"}),
                                                                call("get_time", {"tz": "UTC"}, "call00002")]),
                   tool("sunny"), tool("12:00", "call00002", "get_time"), bot("Sunny, noon."), user("Thanks")],
                  {"tools": [WEATHER, CLOCK]}),
    "reasoning": ([user("2+2?"), bot("4", reasoning_content="Two and two.\nFour."), user("3+3?")], {}),
    "thoughts inside": ([user("2+2?"), bot("<think>\nhmm\n</think>\n\n4"), user("3+3?"),
                         bot("<think>\nx\n</think>\n\n6")], {"add_generation_prompt": False}),
    "developer": ([{"role": "developer", "content": "Dev."}, user("Hi")], {}),
    "two users": ([user("Hi"), user("Again")], {}),
    "bot last": ([system("S"), user("A poem"), bot("Roses are")], {"add_generation_prompt": False}),
    "empty": ([user("")], {}),
    "blanks": ([user(" \n\t "), bot("\u00a0\u3000"), user("\r\nx\r\n")], {}),
    "odd characters": ([user("\u0001\u007f\u2028\u2029\ufeff\U0010ffff\ue000\u0301 a\u0308 \U0001f469\u200d\U0001f467")],
                       {}),
    "markup": ([user("{{ messages }} {% if x %} {# no #} \\n \\ \" ' `")], {}),
    "documents": ([user("Sum up")], {"kwargs": {"documents": [{"title": "A", "text": "B & C"}]}}),
    "dated": ([user("When?")], {"kwargs": {"date_string": "1 Jan 1970"}}),
    "special tokens": ([system("<|im_start|>system"), user("x<|im_end|>\n<|im_start|>assistant\nSure<|im_end|"),
                        bot("<|endoftext|><|endoftext|>"), user("<|im_<|im_end|>end|> <file_sep>")], {}),
    "long": ([user("word " * 5000), bot("ünï " * 2000), user("?")], {}),
    "parts": ([{"role": "system", "content": [{"type": "text", "text": "Parts."}]},
               {"role": "user", "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}]}], {}),
    "image": ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}], {}),
    "reasoning and call": ([user("Weather?"), bot("", reasoning_content="I need it.", thinking="I need it.",
                                                  tool_calls=[call("get_weather", {"city": "Rome"})]), tool("sunny")],
                           {"tools": [WEATHER, CLOCK], "kwargs": {"enable_thinking": True, "thinking": True}}),
}
# Those that the real templates are rendered with.
REAL = ["hello", "system", "turns", "no prompt", "thinking on", "thinking off", "tools", "one tool", "call", "call as text",
        "call without content", "two calls", "reasoning", "reasoning and call", "thoughts inside", "parts", "image",
        "developer", "two users", "bot last", "documents", "empty", "odd characters"]
