/* repl: the conversation of `ingle chat`: messages in, answers out.
 * Owns:    the messages so far and the settings. Commands are in repl_command.c, files in repl_file.c.
 * Threads: main's; answers come from the engine's thread through ig_stream_run.
 * Memory:  malloc, bounded: IG_REPL_TURNS_MAX messages of IG_REPL_TEXT_MAX bytes.
 * Each turn renders the whole conversation again and hands it to the engine, whose prefix cache finds what
 * it has seen: only new tokens are computed, and there is no second way to keep a conversation.
 * On a terminal everything goes to stdout. Without one, stdout holds answers only. */
#include "app/repl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- saying things ------------------------------------------------------------------------------------ */

void ig_repl_say(ig_repl *r, const char *fmt, ...) {
    char *text = NULL;
    int rows;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0) return;
    ig_buf_clear(&r->out);
    if (r->terminal) ig_term_size(&r->own.columns, &rows);
    r->own.colours = true;
    ig_print_text(&r->own, (ig_slice){text, (size_t)n}, &r->out);
    if (r->terminal) ig_term_write(ig_repl_slice(&r->out));
    else fwrite(text, 1, (size_t)n, stderr);
    free(text);
}

void ig_repl_say_error(ig_repl *r, const char *fmt, ...) {
    char text[IG_ERR_BYTES + 256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->failed = true;
    if (!r->terminal) fprintf(stderr, "ingle: %s\n", text);
    else ig_repl_say(r, "%s  %s%s\n", r->colour ? "\x1b[31m" : "", text, ig_repl_plain(r));
}

const char *ig_repl_dim(const ig_repl *r) {
    return r->colour ? "\x1b[2m" : "";
}

const char *ig_repl_plain(const ig_repl *r) {
    return r->colour ? "\x1b[0m" : "";
}

/* ---- turns -------------------------------------------------------------------------------------------- */

void ig_repl_drop(ig_repl *r, int n_keep) {
    while (r->n_turns > n_keep) ig_buf_free(&r->turns[--r->n_turns].text);
}

ig_repl_turn *ig_repl_add(ig_repl *r, bool user) {
    if (r->n_turns == IG_REPL_TURNS_MAX) return NULL;
    ig_repl_turn *t = &r->turns[r->n_turns++];
    *t = (ig_repl_turn){.user = user, .text = ig_buf_init(IG_REPL_TEXT_MAX)};
    return t;
}

ig_status ig_repl_encode(const ig_repl *r, ig_tokens *out, ig_err *err) {
    ig_message *v = calloc((size_t)r->n_turns + 1, sizeof *v);
    if (!v) return ig_fail(err, IG_ELIMIT, "no memory for %d messages", r->n_turns + 1);
    int n = 0;
    if (r->system.n) v[n++] = (ig_message){"system", ig_repl_slice(&r->system)};
    for (int i = 0; i < r->n_turns; i++)
        v[n++] = (ig_message){r->turns[i].user ? "user" : "assistant", ig_repl_slice(&r->turns[i].text)};
    ig_status st = ig_messages_encode(r->l, v, n, out, err);
    free(v);
    return st;
}

/* ---- an answer ---------------------------------------------------------------------------------------- */

static bool put(ig_repl *r, ig_slice s) {
    if (ig_term_write(s)) return true;
    r->output_errno = errno;
    r->output_gone = true;
    return false;
}

static bool on_text(void *ud, ig_slice text) {
    ig_repl *r = ud;
    ig_buf_clear(&r->out);
    if (!ig_buf_add(r->answer, text.p, text.n) || !ig_print_text(&r->print, text, &r->out)) return false;
    return put(r, ig_repl_slice(&r->out));
}

double ig_repl_speed(const ig_gen_stats *s) {
    /* The first token belongs to the time of the prompt. */
    return s->n_tokens > 1 && s->decode_ns ? (s->n_tokens - 1) * 1e9 / (double)s->decode_ns : 0;
}

static void say_figures(ig_repl *r) {
    const ig_gen_stats *s = &r->last.stats;
    ig_repl_say(r, "%s  %d token%s", ig_repl_dim(r), s->n_tokens, s->n_tokens == 1 ? "" : "s");
    if (ig_repl_speed(s) > 0) ig_repl_say(r, ", %.1f tok/s", ig_repl_speed(s));
    if (s->n_tokens) ig_repl_say(r, ", first token %.0f ms", (double)s->first_token_ns / 1e6);
    if (r->last.finish == IG_FINISH_CANCELED) ig_repl_say(r, ", stopped");
    if (r->last.finish == IG_FINISH_LENGTH) ig_repl_say(r, ", cut at the token limit");
    ig_repl_say(r, "%s\n\n", ig_repl_plain(r));
}

static void count(ig_repl *r) {
    const ig_gen_stats *s = &r->last.stats;
    r->n_answers++;
    r->n_tokens += (uint64_t)s->n_tokens;
    r->n_prompt += (uint64_t)s->n_prompt;
    r->n_cached += (uint64_t)s->n_cached;
    if (s->n_tokens > 1) r->decode_ns += s->decode_ns;
}

static ig_status generate(ig_repl *r, const ig_tokens *prompt, ig_err *err) {
    int columns = 0, rows;
    if (r->terminal) ig_term_size(&columns, &rows);
    r->print = (ig_print){.columns = columns};
    r->last_seed = r->o.seeded ? r->o.sampling.seed : ig_rng_fresh_seed();
    ig_stream s = {
        .prompt = prompt->v, .n_prompt = (int)prompt->n, .max_tokens = r->o.max_tokens,
        .sampling = r->o.sampling,
        .text = on_text, .ud = r, .interrupted = &ig_term_stop,
    };
    s.sampling.seed = r->last_seed;
    r->last_drawn = s.sampling.temperature > 0;
    ig_status st = ig_stream_run(r->l, &s, &r->last, err);
    if (r->terminal ? r->print.column > 0 : st == IG_OK && !r->output_gone) put(r, ig_slice_of("\n"));
    return st;
}

void ig_repl_answer(ig_repl *r) {
    ig_err err = {0};
    ig_tokens prompt = {0};
    ig_repl_turn *t = NULL;
    int n_ctx = r->l->plan.n_ctx, n_before = r->n_turns - 1;
    ig_status st = ig_repl_encode(r, &prompt, &err);
    if (st == IG_OK && prompt.n >= (size_t)n_ctx)
        st = ig_fail(&err, IG_ELIMIT, "the conversation has %zu tokens and the context holds %d: /new starts "
                     "over, /undo takes the last exchange back", prompt.n, n_ctx);
    if (st == IG_OK && !(t = ig_repl_add(r, false)))
        st = ig_fail(&err, IG_ELIMIT, "%d messages are the most: /new starts over", IG_REPL_TURNS_MAX);
    if (st == IG_OK) {
        r->answer = &t->text;
        st = generate(r, &prompt, &err);
    }
    ig_tokens_free(&prompt);
    /* A question without any answer is taken back; the arrow keys still find it. */
    bool empty = !t || (!t->text.n && (st != IG_OK || r->last.finish == IG_FINISH_CANCELED));
    if (empty) ig_repl_drop(r, n_before);
    if (st != IG_OK) {
        ig_repl_say_error(r, "%s", err.msg);
        if (r->terminal) ig_repl_say(r, "\n");
        return;
    }
    count(r);
    if (r->terminal) say_figures(r);
    else if (r->last.finish == IG_FINISH_LENGTH) ig_stream_say_cut(r->l, r->o.max_tokens, &r->last);
}

/* ---- the loops ---------------------------------------------------------------------------------------- */

static void take(ig_repl *r, ig_buf *text) {
    bool blank = true;
    for (size_t i = 0; i < text->n; i++) blank = blank && strchr(" \t\n", text->p[i]) != NULL;
    if (blank || ig_repl_command(r, text)) return;
    ig_slice s = {text->p, text->n};
    if (s.n > 1 && s.p[0] == '/' && s.p[1] == '/') s = (ig_slice){s.p + 1, s.n - 1};
    ig_repl_turn *t = ig_repl_add(r, true);
    if (t && ig_buf_add(&t->text, s.p, s.n)) {
        ig_repl_answer(r);
        return;
    }
    if (t) ig_repl_drop(r, r->n_turns - 1);
    ig_repl_say_error(r, "no room for another message: /new starts over");
}

static void talk(ig_repl *r) {
    int n_interrupts = 0;
    ig_repl_say(r, "%s%s, context %d. /help lists the commands.%s\n\n", ig_repl_dim(r), r->l->name,
                r->l->plan.n_ctx, ig_repl_plain(r));
    while (!r->leave && !ig_term_quit && !r->output_gone) {
        ig_edit_event event = ig_term_read(&r->edit, r->colour, r->colour ? "Write a message" : NULL);
        if (event == IG_EDIT_EOF || ig_term_quit) break;
        if (event == IG_EDIT_INTERRUPT) {
            /* On a text it clears the text; only an empty line counts towards leaving. */
            n_interrupts = r->edit.was_empty ? n_interrupts + 1 : 0;
            if (n_interrupts == 2) break;
            if (n_interrupts)
                ig_repl_say(r, "%s  Ctrl-C again, or Ctrl-D, leaves.%s\n", ig_repl_dim(r), ig_repl_plain(r));
            continue;
        }
        n_interrupts = 0;
        ig_repl_history_add(r, ig_repl_slice(&r->edit.text));
        take(r, &r->edit.text);
    }
}

bool ig_repl_read(ig_repl_input *in, ig_buf *out, ig_err *err) {
    bool any = false, full = false;
    *err = (ig_err){0};
    ig_buf_clear(out);
    while (!ig_term_stop) {
        if (in->at == in->n) {
            if (ig_term_wait(in->fd, -1) < 0) continue;
            ssize_t n = read(in->fd, in->bytes, sizeof in->bytes);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
                ig_fail(err, IG_EIO, "stdin: %s", strerror(errno));
                return false; /* half a message is none */
            }
            if (n == 0) break;
            in->n = (size_t)n;
            in->at = 0;
        }
        char c = (char)in->bytes[in->at++];
        any = true;
        if (c == '\n') {
            if (full || !ig_edit_is_open(ig_repl_slice(out))) break;
            if (out->p[out->n - 1] == '\\') out->p[--out->n] = 0;
        }
        if (c != '\r') full |= !ig_buf_add(out, &c, 1);
    }
    size_t bad_at = 0;
    if (full) ig_fail(err, IG_ELIMIT, "a message is longer than %zu bytes", out->n_max);
    else if (!ig_slice_utf8_valid(ig_repl_slice(out), &bad_at))
        ig_fail(err, IG_EFORMAT, "a message is not UTF-8 at byte %zu", bad_at);
    return any;
}

static void listen_plain(ig_repl *r) {
    ig_repl_input in = {.fd = STDIN_FILENO};
    ig_buf text = ig_buf_init(IG_EDIT_TEXT_MAX);
    ig_err err = {0};
    bool any = false;
    while (!r->leave && !ig_term_stop && !r->output_gone && ig_repl_read(&in, &text, &err)) {
        if (ig_term_stop) break;
        any = true;
        if (err.code != IG_OK) ig_repl_say_error(r, "%s", err.msg);
        else take(r, &text);
    }
    if (err.code == IG_EIO) ig_repl_say_error(r, "%s", err.msg);
    else if (!any && !ig_term_stop) ig_repl_say_error(r, "stdin is empty: each of its lines is a message");
    if (r->output_gone) ig_repl_say_error(r, "write to stdout: %s", strerror(r->output_errno));
    ig_buf_free(&text);
}

static int exit_code(const ig_repl *r) {
    if (ig_term_quit) return 128 + ig_term_quit;
    if (r->terminal) return IG_EXIT_OK;
    if (ig_term_stop) return IG_EXIT_INTERRUPTED;
    return r->failed || r->output_gone ? IG_EXIT_FAILED : IG_EXIT_OK;
}

int ig_repl_run(const ig_loaded *l, const ig_repl_options *o) {
    ig_repl *r = calloc(1, sizeof *r);
    if (!r) return ig_app_say(IG_EXIT_MEMORY, "no memory for a conversation");
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    r->l = l;
    r->o = *o;
    r->system = ig_buf_init(IG_REPL_TEXT_MAX);
    r->out = ig_buf_init(IG_REPL_TEXT_MAX);
    if (o->system) ig_buf_add_str(&r->system, o->system);
    r->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    r->colour = r->terminal && !(no_colour && *no_colour);
    ig_edit_init(&r->edit);
    ig_term_open();
    if (r->terminal) {
        if (!o->no_history) ig_repl_history_open(r);
        talk(r);
    } else {
        listen_plain(r);
    }
    int code = exit_code(r);
    ig_term_close();
    ig_repl_drop(r, 0);
    ig_edit_free(&r->edit);
    ig_buf_free(&r->system);
    ig_buf_free(&r->out);
    free(r->history_path);
    free(r->file);
    free(r);
    return code;
}
