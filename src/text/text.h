/* text: between characters and token ids.
 *
 * Owns:    tokenizers, chat templates, incremental decoders, stop-string matchers.
 * Takes:   metadata of an open ig_gguf, user text (hostile), messages as JSON.
 * Gives:   token ids, UTF-8 that never holds half a character.
 * Threads: a tokenizer and a template are read-only after they were made; each thread that encodes or
 *          renders passes its own ig_tokenizer_scratch (NULL: one is made for the call).
 * Memory:  malloc, bounded by the input; outputs are bounded by n_max of the caller's buffer.
 * Fails:   IG_EFORMAT (file, template), IG_EINVAL (text, messages), IG_ELIMIT (bounds).
 * Not here: the HTTP shape of messages (serve/), what the ids do (engine/). */
#ifndef IG_TEXT_H
#define IG_TEXT_H

#include "base/base.h"
#include "file/file.h"

/* ---- tokenizer.c ------------------------------------------------------------------------------------ */

enum { IG_TOKEN_NONE = 0xffffffffu };

typedef struct ig_tokenizer ig_tokenizer;
typedef struct ig_tokenizer_scratch ig_tokenizer_scratch;

/* From the arrays of a GGUF file, copied: the file may be closed. Refuses an unknown `tokenizer.ggml.model`
 * (llama, gpt2 and gemma4 are known) or `.pre` by name; a missing `.pre` is "default", with a warning. */
ig_status ig_tokenizer_from_gguf(ig_tokenizer **out, const ig_gguf *g, ig_err *err);

/* What a snapshot's other files say about its tokens. A BOS or EOS that is no token is an error; names of the
 * other two that are none count as not said. */
typedef struct ig_tokenizer_facts {
    ig_slice bos, eos, unk, pad; /* their texts; .p NULL: not said */
    int add_bos;                 /* 0, 1; -1: not said, the post-processor decides */
    bool add_eos;                /* behind each text, if the post-processor does not */
    const uint32_t *eos_id;      /* with `eos`, the end set; if that is empty, the known end markers */
    int n_eos;
} ig_tokenizer_facts;

/* From the root of tokenizer.json, copied: the document may be freed. What is not BPE, and every part that
 * could not be done as the reference does it, is refused by name (IG_EFORMAT). facts NULL: nothing said. */
ig_status ig_tokenizer_from_json(ig_tokenizer **out, yyjson_val *tokenizer_json,
                                 const ig_tokenizer_facts *facts, ig_err *err);
/* From a model's folder: tokenizer.json, and of tokenizer_config.json, special_tokens_map.json, config.json
 * and generation_config.json what they say of bos, eos, unk and pad. */
ig_status ig_tokenizer_from_snapshot(ig_tokenizer **out, const ig_snapshot *s, ig_err *err);
void ig_tokenizer_free(ig_tokenizer *t);
ig_tokenizer_scratch *ig_tokenizer_scratch_make(void); /* word cache, match data; NULL: no memory */
void ig_tokenizer_scratch_free(ig_tokenizer_scratch *s);

typedef struct ig_text_range {
    size_t from, to; /* bytes [from, to) */
} ig_text_range;

typedef struct ig_encode_options {
    bool add_bos; /* what the file puts around a text (its add_bos, its post-processor); BOS never twice */
    bool parse_special; /* control tokens in the text are recognised */
    const ig_text_range *plain; /* ascending ranges; a control token that touches one is text */
    size_t n_plain;
} ig_encode_options;

/* Appends to *out; adds nothing on failure. Text must be valid UTF-8 (IG_EINVAL with the offset otherwise).
 * User-defined tokens are recognised everywhere, also in plain ranges. */
ig_status ig_tokenizer_encode(const ig_tokenizer *t, ig_tokenizer_scratch *s, ig_slice text,
                              ig_encode_options opt, ig_tokens *out, ig_err *err);

uint32_t ig_tokenizer_n_vocab(const ig_tokenizer *t);
ig_slice ig_tokenizer_bytes(const ig_tokenizer *t, uint32_t id);  /* what it decodes to; special: its text */
bool ig_tokenizer_is_special(const ig_tokenizer *t, uint32_t id); /* control or unknown: not printed */
uint32_t ig_tokenizer_find_special(const ig_tokenizer *t, ig_slice text); /* or IG_TOKEN_NONE */
uint32_t ig_tokenizer_bos(const ig_tokenizer *t);                 /* or IG_TOKEN_NONE */
bool ig_tokenizer_adds_bos(const ig_tokenizer *t);
/* End-of-generation ids: eos, eot, eom and the known end markers of the vocabulary. */
const uint32_t *ig_tokenizer_eos(const ig_tokenizer *t, int *n);
/* The tokens of a line's end, encoded as a text of its own, then the end tokens: what a sampler that takes likely
 * tokens away (xtc) must leave. At most n_max; gives how many. */
int ig_tokenizer_breaks(const ig_tokenizer *t, uint32_t *out, int n_max);

/* ---- embedding.c: a text of which a model makes a vector ---------------------------------------------- */

/* Appends the ids of the text, with `Instruct: TASK\nQuery:` before it when there is a task (queries have one,
 * documents do not), and the end token that the vector is the row of. Adds nothing on failure. s may be NULL. */
uint32_t ig_embedding_end(const ig_tokenizer *t); /* what it ends with, where the text does not; or IG_TOKEN_NONE */
ig_status ig_embedding_encode(const ig_tokenizer *t, ig_tokenizer_scratch *s, ig_slice text, ig_slice task,
                              ig_tokens *out, ig_err *err);

/* ---- detok.c: ids to text, as they come ------------------------------------------------------------- */

/* A value: no memory of its own. Holds at most 3 bytes back: the beginning of a character. Invalid bytes
 * become U+FFFD, one for each maximal subpart. Control and unknown tokens print nothing and do not end a
 * begun character, unless show_special. Nothing is trimmed but what the file's decoder drops at the beginning
 * of a text (a blank that encoding put there). The concatenation of all output equals the decoding of all
 * ids at once. */
typedef struct ig_detok {
    const ig_tokenizer *t;
    uint8_t held[4];
    int n_held, n_strip;
    bool begun; /* something was decoded */
    bool show_special;
} ig_detok;

static inline ig_detok ig_detok_init(const ig_tokenizer *t) {
    return (ig_detok){.t = t};
}
bool ig_detok_add(ig_detok *d, uint32_t id, ig_buf *out); /* false: out is full */
bool ig_detok_finish(ig_detok *d, ig_buf *out);

/* ---- stop.c: stop strings on decoded bytes ---------------------------------------------------------- */

enum { IG_STOP_STRINGS_MAX = 16, IG_STOP_BYTES_MAX = 512 };

typedef struct ig_stop ig_stop;

ig_status ig_stop_make(ig_stop **out, const ig_slice *strings, int n, ig_err *err);
void ig_stop_free(ig_stop *s);
/* Feeds text; appends to *out what can no longer be part of a stop. True when a stop string matched
 * (ends earliest, among those the longest): what comes before it was released, the rest is dropped, and
 * *which says which (may be NULL). *out needs room for `text` and IG_STOP_BYTES_MAX more: what does not
 * fit is lost. After a match nothing more comes out. */
bool ig_stop_feed(ig_stop *s, ig_slice text, ig_buf *out, int *which);
void ig_stop_finish(ig_stop *s, ig_buf *out); /* the end without a match: releases what was held */

/* ---- template.c, chat.c: messages to a prompt -------------------------------------------------------- */

typedef struct ig_template ig_template;

/* Compiles. A template that does not parse, or is over the bounds on size and nesting, is IG_EFORMAT, with
 * its line where there is one. A render is bounded in steps, output, processor time and memory (IG_ELIMIT);
 * what the template itself raises is IG_EINVAL with its words. */
ig_status ig_template_make(ig_template **out, ig_slice source, ig_err *err);
void ig_template_free(ig_template *t);
/* Another one for inputs with tools, where a model has two. Taken over by t; NULL: none. */
void ig_template_set_for_tools(ig_template *t, ig_template *for_tools);
/* The source of a folder's template, malloc'd. `name`: "default", or another as "tool_use". They are in
 * chat_template.jinja and additional_chat_templates/NAME.jinja; without the first, in chat_template of
 * tokenizer_config.json. IG_ENOTFOUND: none. */
ig_status ig_template_source_from_snapshot(char **out, size_t *n, const ig_snapshot *s, const char *name,
                                           ig_err *err);

typedef struct ig_chat_input {
    yyjson_val *messages;       /* array of {role, content, ...}; contents are strings (already joined) */
    yyjson_val *tools;          /* or NULL */
    yyjson_val *kwargs;         /* object merged over the variables, or NULL */
    bool add_generation_prompt; /* false when the last message is the assistant's and is to be continued */
    bool continue_final;        /* the last message's content ends the prompt */
    int64_t now_s;              /* for strftime_now */
} ig_chat_input;

/* Renders with bos_token, eos_token, unk_token and pad_token of the tokenizer. Control tokens typed in
 * messages, tools and kwargs are text: they go in as placeholders (private-use characters that the input
 * does not hold), come back out after rendering, and their byte ranges are given in *plain (malloc'd,
 * *n_plain of them). */
ig_status ig_chat_render(const ig_template *tpl, const ig_tokenizer *t, const ig_chat_input *in,
                         ig_buf *prompt, ig_text_range **plain, size_t *n_plain, ig_err *err);

/* Whether a template shows what a user says: *shows is false when it rendered a message without its text. One
 * that renders nothing at all is IG_EFORMAT; one that refuses this message may show others: true. */
ig_status ig_chat_probe(const ig_template *tpl, const ig_tokenizer *t, bool *shows, ig_err *err);

/* Render, then encode. No BOS is added: a template writes it where the model wants one. */
ig_status ig_chat_encode(const ig_template *tpl, const ig_tokenizer *t, ig_tokenizer_scratch *s,
                         const ig_chat_input *in, ig_tokens *out, ig_err *err);

#endif
