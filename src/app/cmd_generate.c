/* generate: one prompt, one answer. Text to stdout as it comes, everything else to stderr. */
#include "app/load.h"
#include "file/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROMPT_BYTES_MAX = 16 << 20, ANSWER_BYTES_MAX = 64 << 20 };

typedef struct generate {
    const char *prompt, *system;
    bool raw, json, stats, seeded;
    int max_tokens;
    ig_option_list stops;
    ig_sampling sampling;
    ig_biases biases;
    ig_buf answer; /* kept for --json only */
    char last;     /* the last byte that was printed */
    bool broken;   /* stdout does not take any more */
} generate;

static ig_status read_stdin(ig_buf *out, ig_err *err) {
    char part[65536];
    for (;;) {
        ssize_t got = read(STDIN_FILENO, part, sizeof part);
        if (got < 0 && errno == EINTR && !ig_signal_seen) continue;
        if (got < 0)
            return ig_fail(err, errno == EINTR ? IG_ECANCELED : IG_EIO, "stdin: %s", strerror(errno));
        if (got == 0) return IG_OK;
        if (!ig_buf_add(out, part, (size_t)got))
            return ig_fail(err, IG_ELIMIT, "stdin: more than %zu bytes, the limit", out->n_max);
    }
}

static bool take_text(void *ud, ig_slice text) {
    generate *g = ud;
    if (g->json) return ig_buf_add(&g->answer, text.p, text.n);
    g->last = text.p[text.n - 1];
    g->broken = fwrite(text.p, 1, text.n, stdout) != text.n || fflush(stdout) != 0;
    return !g->broken;
}

static const char *finish_name(ig_finish f) {
    static const char *const names[] = {[IG_FINISH_NONE] = "none",
                                        [IG_FINISH_STOP] = "stop",
                                        [IG_FINISH_LENGTH] = "length",
                                        [IG_FINISH_CANCELED] = "canceled",
                                        [IG_FINISH_FAILED] = "failed"};
    return names[f];
}

static double per_second(double n, uint64_t ns) {
    return ns ? n * 1e9 / (double)ns : 0;
}

static const char *tier_of(const generate *g, const ig_loaded *l) {
    return ig_tier_name(g->sampling.temperature > 0 ? l->tier_sampled : l->tier);
}

static void print_stats(const generate *g, const ig_loaded *l, const ig_stream_result *r) {
    const ig_gen_stats *s = &r->stats;
    fprintf(stderr,
            "prompt    %d tokens, %d of them cached, %.1f tok/s\n"
            "answer    %d tokens, %.1f tok/s, first after %.0f ms (%s)\n"
            "load      %.0f ms\nmemory    %s\nnumbers   tier %s\n",
            s->n_prompt, s->n_cached, per_second(s->n_prompt - s->n_cached, s->prefill_ns), s->n_tokens,
            per_second(s->n_tokens - 1, s->decode_ns), (double)s->first_token_ns / 1e6,
            finish_name(r->finish), (double)l->load_ns / 1e6, ig_size_text_of(ig_memory_resident_bytes()).s,
            tier_of(g, l));
    if (g->sampling.temperature > 0) fprintf(stderr, "seed      %" PRIu64 "\n", g->sampling.seed);
    else fprintf(stderr, "seed      not used: at temperature 0 nothing is drawn\n");
}

static int print_json(const generate *g, const ig_loaded *l, const ig_stream_result *r) {
    const ig_gen_stats *s = &r->stats;
    bool lost;
    yyjson_mut_doc *doc = ig_json_doc_make(&lost);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    ig_json_add_bytes(doc, root, "model", l->name);
    yyjson_mut_obj_add_strn(doc, root, "text", g->answer.n ? g->answer.p : "", g->answer.n);
    yyjson_mut_obj_add_str(doc, root, "finish_reason", finish_name(r->finish));
    yyjson_mut_obj_add_uint(doc, root, "seed", g->sampling.seed);
    yyjson_mut_val *usage = yyjson_mut_obj_add_obj(doc, root, "usage");
    yyjson_mut_obj_add_int(doc, usage, "prompt_tokens", s->n_prompt);
    yyjson_mut_obj_add_int(doc, usage, "cached_tokens", s->n_cached);
    yyjson_mut_obj_add_int(doc, usage, "completion_tokens", s->n_tokens);
    yyjson_mut_obj_add_str(doc, usage, "tier", tier_of(g, l));
    yyjson_mut_val *t = yyjson_mut_obj_add_obj(doc, root, "timings");
    yyjson_mut_obj_add_real(doc, t, "load_ms", (double)l->load_ns / 1e6);
    yyjson_mut_obj_add_real(doc, t, "first_token_ms", (double)s->first_token_ns / 1e6);
    yyjson_mut_obj_add_real(doc, t, "prompt_per_second",
                            per_second(s->n_prompt - s->n_cached, s->prefill_ns));
    yyjson_mut_obj_add_real(doc, t, "predicted_per_second", per_second(s->n_tokens - 1, s->decode_ns));
    return ig_app_print_json(doc, lost);
}

static ig_status encode(const generate *g, const ig_loaded *l, ig_slice text, ig_tokens *out, ig_err *err) {
    if (g->raw) return ig_text_encode(l, text, out, err);
    ig_message m[2];
    int n = 0;
    if (g->system) m[n++] = (ig_message){"system", ig_slice_of(g->system)};
    m[n++] = (ig_message){"user", text};
    return ig_messages_encode(l, m, n, out, err);
}

static int run(generate *g, const ig_loaded *l, ig_slice text) {
    ig_err err;
    ig_tokens prompt = {0};
    ig_slice stops[IG_OPTION_LIST_MAX];
    ig_stream_result r;
    for (int i = 0; i < g->stops.n; i++) stops[i] = ig_slice_of(g->stops.v[i]);

    ig_status st = encode(g, l, text, &prompt, &err);
    if (!st && prompt.n == 0) st = ig_fail(&err, IG_EINVAL, "the prompt has no tokens");
    if (!st && prompt.n >= (size_t)l->plan.n_ctx)
        st = ig_fail(&err, IG_EINVAL, "the prompt has %zu tokens, the context has room for %d", prompt.n,
                     l->plan.n_ctx - 1);
    if (!st) {
        const ig_stream s = {.prompt = prompt.v,
                             .n_prompt = (int)prompt.n,
                             .max_tokens = g->max_tokens,
                             .sampling = g->sampling,
                             .stops = stops,
                             .n_stops = g->stops.n,
                             .text = take_text,
                             .ud = g,
                             .interrupted = &ig_signal_seen};
        st = ig_stream_run(l, &s, &r, &err);
    }
    ig_tokens_free(&prompt);
    if (!g->json && g->last && g->last != '\n' && !g->broken) putchar('\n');
    if (st) return ig_app_fail(&err);
    if (g->broken) return ig_app_say(IG_EXIT_FAILED, "write to stdout: %s", strerror(errno));
    int code = g->json ? print_json(g, l, &r) : IG_EXIT_OK;
    if (g->stats) {
        fflush(stdout);
        print_stats(g, l, &r);
    } else if (!g->json && r.finish == IG_FINISH_LENGTH) {
        fflush(stdout);
        ig_stream_say_cut(l, g->max_tokens, &r);
    }
    return ig_signal_seen ? ig_exit_of_signal(ig_signal_seen) : code;
}

int ig_cmd_generate(int argc, char **argv) {
    generate g = {.max_tokens = 256,
                  .sampling = ig_sampling_defaults(),
                  .answer = ig_buf_init(ANSWER_BYTES_MAX)};
    ig_load_options load = ig_load_defaults();
    const ig_option options[] = {
        {"prompt", .letter = 'p', .kind = IG_OPT_TEXT, .to = &g.prompt, .value = "TEXT",
         .help = "what to answer; - reads it from stdin"},
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"system", .kind = IG_OPT_TEXT, .to = &g.system, .value = "TEXT", .help = "the system message"},
        {"raw", .kind = IG_OPT_BOOL, .to = &g.raw, .help = "no chat template: go on where the prompt ends"},
        {"max-tokens", .letter = 'n', .kind = IG_OPT_INT, .to = &g.max_tokens, .max = 1 << 24,
         .value = "N", .help = "longest answer (0: what the context leaves)"},
        IG_SAMPLING_OPTIONS(g.sampling, g.biases, g.seeded),
        {"stop", .kind = IG_OPT_LIST, .to = &g.stops, .value = "TEXT",
         .help = "end before this text; repeatable"},
        {"json", .kind = IG_OPT_BOOL, .to = &g.json, .help = "one JSON object at the end instead of text"},
        {"stats", .kind = IG_OPT_BOOL, .to = &g.stats, .help = "speed, memory and seed on stderr afterwards"},
        IG_LOAD_OPTIONS(load),
        IG_TEMPLATE_OPTION(load),
    };
    const ig_command c = {
        .verb = "generate",
        .words = "[MODEL] -p TEXT",
        .summary =
            "Answers one prompt. The same options and seed give the same text, here and from the server.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .n_words_max = 1};
    ig_words words;
    ig_loaded l;
    ig_buf input = ig_buf_init(PROMPT_BYTES_MAX);
    ig_slice text;
    ig_err err;
    int code;

    if (!ig_options_parse(&c, argc, argv, &words, &code)) return code;
    if (words.n) load.model = words.v[0];
    if (!g.prompt) return ig_app_say(IG_EXIT_USAGE, "no prompt; give -p TEXT, or -p - to read it from stdin");
    if (g.raw && g.system)
        return ig_app_say(IG_EXIT_USAGE, "--system needs the chat template, which --raw leaves out");
    if ((code = ig_biases_read(&g.biases, &g.sampling))) return code;
    if (!g.seeded) g.sampling.seed = ig_rng_fresh_seed();
    load.engine.n_slots = 1;
    ig_signals_note();
    text = ig_slice_of(g.prompt);
    if (strcmp(g.prompt, "-") == 0) {
        if (read_stdin(&input, &err)) {
            ig_buf_free(&input);
            return ig_app_fail(&err);
        }
        text = (ig_slice){input.n ? input.p : "", input.n};
    }
    code = ig_load(&l, &load);
    if (!code) {
        code = ig_biases_check(&g.sampling, &l);
        if (l.tier < IG_TIER_L3) g.sampling.n_drawn = ig_model_mlx_draws(l.model); /* as the command of mlx-lm */
        if (!code) code = run(&g, &l, text);
        ig_unload(&l);
    }
    ig_buf_free(&g.answer);
    ig_buf_free(&input);
    return code;
}
