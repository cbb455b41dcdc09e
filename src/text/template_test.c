/* Tests of templates: what they may not do. That they render as transformers does is shown by tests/text. */
#include "text/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/test.h"

/* Renders `source` with no variables but x = 1. */
static ig_status render(const char *source, ig_buf *out, ig_err *err) {
    ig_template *t = NULL;
    ig_status st = ig_template_make(&t, ig_slice_of(source), err);
    if (!st)
        st = ig_template_render(t, ig_slice_of("{\"x\": 1, \"messages\": [{\"role\": \"user\"}]}"), 0, out,
                                err);
    ig_template_free(t);
    return st;
}

static void renders(const char *source, const char *want) {
    ig_buf out = ig_buf_init(1 << 20);
    ig_err err = {0};
    ig_status st = render(source, &out, &err);
    CHECK_MSG(st == IG_OK && ig_slice_eq_str((ig_slice){out.p, out.n}, want), "%s gave %d %s %s", source, st,
              st ? err.msg : "", st ? "" : out.p);
    ig_buf_free(&out);
}

static void refused(const char *source, ig_status want, const char *word) {
    ig_buf out = ig_buf_init(32 << 20);
    ig_err err = {0};
    ig_status st = render(source, &out, &err);
    CHECK_MSG(st == want && strstr(err.msg, word), "%.60s gave %d \"%s\", wanted %d \"%s\"", source, st,
              err.msg, want, word);
    ig_buf_free(&out);
}

/* left, n times; middle; right, n times. */
static char *nested(const char *left, const char *middle, const char *right, int n) {
    ig_buf b = ig_buf_init(4 << 20);
    for (int i = 0; i < n; i++) ig_buf_add_str(&b, left);
    ig_buf_add_str(&b, middle);
    for (int i = 0; i < n; i++) ig_buf_add_str(&b, right);
    return b.p;
}

static void nested_refused(const char *left, const char *middle, const char *right, int n, ig_status want,
                           const char *word) {
    char *source = nested(left, middle, right, n);
    refused(source, want, word);
    free(source);
}

TEST(a_template_renders_its_variables) {
    renders("a{{ x }}b{{ messages[0].role }}", "a1buser");
    renders("{{ nothing }}{{ none }}{{ 1.0 }} {{ true }}", "None1.0 True");
    renders("{% generation %}in{% endgeneration %}", "in");
    renders("line\r\n", "line");
    renders("", "");
}

TEST(a_syntax_error_names_its_line) {
    refused("a\nb\n{{ 'c }}", IG_EFORMAT, ":3)");
    refused("{% if x %}", IG_EFORMAT, "end of input");
    refused("{% nosuch %}", IG_EFORMAT, "nosuch");
    refused("\xFF", IG_EFORMAT, "not UTF-8 at byte 0");
}

TEST(what_a_template_raises_is_told_to_the_user) {
    refused("{{ raise_exception('roles must alternate') }}", IG_EINVAL, "roles must alternate");
    refused("{% macro m() %}{{ raise_exception('inside') }}{% endmacro %}{{ m() }}", IG_EINVAL, "inside");
    refused("{{ x | nosuch }}", IG_EINVAL, "nosuch");
    refused("{{ x() }}", IG_EINVAL, "");
}

TEST(there_is_nothing_to_reach_from_a_template) {
    refused("{{ ''.__class__.__mro__[1].__subclasses__() }}", IG_EINVAL, "undefined");
    refused("{{ cycler.__init__.__globals__ }}", IG_EINVAL, "undefined");
    refused("{% include '/etc/passwd' %}", IG_EINVAL, "/etc/passwd");
    refused("{% include 'chat_template' %}", IG_EINVAL, "");
    refused("{% extends 'chat_template' %}", IG_EINVAL, "");
}

TEST(deep_nesting_is_an_error_and_not_a_deep_stack) {
    char *parens = nested("(", "1", ")", 6000);
    renders(parens, parens); /* outside a tag it is text */
    ig_buf b = ig_buf_init(1 << 20);
    ig_buf_addf(&b, "{{ %s }}", parens);
    refused(b.p, IG_EFORMAT, "recursion");
    ig_buf_free(&b);
    free(parens);
    nested_refused("{% if x %}", "y", "{% endif %}", 6000, IG_EFORMAT, "recursion");
    nested_refused("{% for a in x %}", "y", "{% endfor %}", 6000, IG_EFORMAT, "recursion");
    char *elifs = nested("{% elif x %}", "", "", 60000);
    b = ig_buf_init(4 << 20);
    ig_buf_addf(&b, "{%% if x %%}%s{%% endif %%}", elifs);
    refused(b.p, IG_EFORMAT, "elif");
    ig_buf_free(&b);
    free(elifs);
    char *dots = nested(".a", "", "", 40000);
    b = ig_buf_init(4 << 20);
    ig_buf_addf(&b, "\n\n{{ x%s }}", dots);
    refused(b.p, IG_EFORMAT, "line 3: a tag of 80007 bytes");
    ig_buf_free(&b);
    free(dots);
    char *large = nested("x", "", "", (1 << 20) + 1);
    refused(large, IG_EFORMAT, "1048577 bytes");
    free(large);
}

TEST(work_and_output_have_an_end) {
    refused("{% for i in range(10**9) %}x{% endfor %}", IG_EINVAL, "range");
    refused("{% for i in range(25000) %}{% for j in range(25000) %}{% endfor %}{% endfor %}", IG_ELIMIT,
            "fuel");
    refused("{{ 'A' * 10**10 }}", IG_ELIMIT, "fuel");
    refused("{{ 'a\nb' | indent(10**9) }}", IG_ELIMIT, "fuel");
    refused("{% for i in range(18) %}{{ 'a' * 1000000 }}{% endfor %}", IG_ELIMIT, "output");
    refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", IG_EINVAL, "recursion");
    refused(
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        IG_ELIMIT, "fuel");
}

#define DOUBLED                                                                                              \
    "{% set ns = namespace(v=[1]) %}{% for i in range(50) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}"
#define DEEP                                                                                                 \
    "{% set ns = namespace(v=[]) %}{% for i in range(60) %}{% for j in range(1000) %}"                       \
    "{% set ns.v = [ns.v] %}{% endfor %}{% endfor %}"
#define CYCLE "{% set ns = namespace() %}{% set ns.v = ns %}"

TEST(values_that_print_to_more_than_there_is_are_refused) {
    if (ig_test_emulator()) SKIP("time runs out before memory on an emulated machine");
    refused(DOUBLED "{{ ns.v }}", IG_ELIMIT, "over");
    refused(DOUBLED "{{ ns.v | tojson }}", IG_ELIMIT, "over");
    refused(DOUBLED "{{ ns.v | string }}", IG_ELIMIT, "over");
    refused(DOUBLED "{{ ns.v ~ 'x' }}", IG_ELIMIT, "too much");
    refused(DEEP "{{ ns.v }}", IG_ELIMIT, "256 levels");
    renders(DEEP "{{ (ns.v ~ 'x') | length }}", "120003"); /* deep, but its stack is deeper */
    refused(CYCLE "{{ ns ~ 'x' }}", IG_ELIMIT, "too much");
}

TEST(a_template_that_ran_away_twice_is_not_run_again) {
    static const char source[] = "{% if x == 1 %}fine{% else %}" DOUBLED "{{ ns.v in 'abc' }}{% endif %}";
    ig_template *t = NULL;
    ig_buf out = ig_buf_init(100);
    ig_err err = {0};
    ig_slice good = ig_slice_of("{\"x\": 1}"), bad = ig_slice_of("{\"x\": 2}");
    if (!CHECK(ig_template_make(&t, ig_slice_of(source), &err) == IG_OK)) return;
    CHECK(ig_template_render(t, bad, 0, &out, &err) == IG_ELIMIT && strstr(err.msg, "too much"));
    CHECK(ig_template_render(t, good, 0, &out, &err) == IG_OK && out.n == 4);
    CHECK(ig_template_render(t, bad, 0, &out, &err) == IG_ELIMIT && strstr(err.msg, "too much"));
    CHECK(ig_template_render(t, good, 0, &out, &err) == IG_ELIMIT && strstr(err.msg, "not run again"));
    CHECK(out.n == 4);
    ig_buf_free(&out);
    ig_template_free(t);
}

TEST(a_small_buffer_refuses_the_prompt) {
    ig_buf out = ig_buf_init(3);
    ig_err err;
    CHECK(render("four", &out, &err) == IG_ELIMIT && strstr(err.msg, "4 bytes, limit 3") && out.n == 0);
    ig_buf_free(&out);
}
