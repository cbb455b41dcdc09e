/* repl: the parts of `ingle chat`: a line editor, an answer that fits the terminal, the conversation.
 *
 * The editor and the printer are plain machines, bytes in and bytes out, so that tests need no terminal;
 * repl_term.c is the only file that touches one. */
#ifndef IG_APP_REPL_H
#define IG_APP_REPL_H

#include "app/load.h"

#include <signal.h> /* sig_atomic_t */

/* ---- repl_edit.c: keys to a text ---------------------------------------------------------------------- */

enum {
    IG_EDIT_TEXT_MAX = 1 << 20,  /* bytes of one message */
    IG_EDIT_HISTORY_MAX = 1000,  /* messages that the arrow keys find */
    IG_EDIT_ENTRY_MAX = 16 << 10 /* longer messages are not remembered */
};

typedef enum ig_edit_event {
    IG_EDIT_MORE,      /* nothing to do but draw */
    IG_EDIT_SUBMIT,    /* Enter on a text that is whole */
    IG_EDIT_INTERRUPT, /* Ctrl-C; the text was cleared */
    IG_EDIT_EOF,       /* Ctrl-D on an empty text */
    IG_EDIT_REDRAW,    /* Ctrl-L */
    IG_EDIT_SUSPEND    /* Ctrl-Z */
} ig_edit_event;

typedef struct ig_edit {
    ig_buf text;     /* valid UTF-8 without control characters but \n and \t */
    size_t cursor;   /* byte offset, on a character */
    ig_buf killed;   /* what Ctrl-K, Ctrl-U and Ctrl-W took, for Ctrl-Y */
    char *history[IG_EDIT_HISTORY_MAX];
    int n_history, at; /* at == n_history: the text is not from the history */
    ig_buf draft;    /* the text before the first arrow up */
    bool was_empty, was_pasting; /* at the last Ctrl-C */
    bool pasting;    /* between the terminal's paste marks: keys but Ctrl-C are text */
    uint8_t esc[32]; /* a key sequence that has begun */
    int n_esc;
    uint8_t part[4]; /* a character that has begun */
    int n_part;
    int drawn_row;   /* of the cursor, counted from the first row that was drawn */
} ig_edit;

void ig_edit_init(ig_edit *e);
void ig_edit_free(ig_edit *e);
ig_edit_event ig_edit_feed(ig_edit *e, uint8_t byte);
void ig_edit_lone_escape(ig_edit *e); /* nothing followed an Escape: it was the key */
void ig_edit_clear(ig_edit *e);       /* an empty text, the end of the history */
bool ig_edit_remember(ig_edit *e, ig_slice text); /* true when it is new and was added */
/* Draws over what was drawn before: text, cursor, and `hint` while there is no text (NULL: none). At most
 * `rows` rows of `columns` are used; a longer text shows the part around the cursor. */
void ig_edit_draw(ig_edit *e, int columns, int rows, bool colour, const char *hint, ig_buf *out);
/* The same without a cursor in the middle: how the text stays on the screen. */
void ig_edit_draw_final(ig_edit *e, int columns, int rows, bool colour, ig_buf *out);
/* More lines belong to it: an open ``` block, or a backslash at the end. */
bool ig_edit_is_open(ig_slice text);

/* ---- repl_print.c: an answer on a screen -------------------------------------------------------------- */

enum { IG_PRINT_WORD_MAX = 512 };

/* Breaks lines between words at the width; text in ``` blocks is left alone. Control characters of the
 * answer never reach the terminal. */
typedef struct ig_print {
    int columns;          /* 0: as it is (not a terminal) */
    int column;
    char word[IG_PRINT_WORD_MAX];
    int n_word, word_columns;
    bool in_code;
    bool colours;         /* text of our own: ESC [ ... m passes and takes no room */
    char line[4];         /* how the line begins: finds ``` */
    int n_line;
} ig_print;

bool ig_print_text(ig_print *p, ig_slice text, ig_buf *out);
/* Columns that a code point takes on a terminal, -1 for what must not be sent to one. */
int ig_print_columns_of(uint32_t code);
/* The code point at s[at], and its length. Not valid: U+FFFD, 1. */
uint32_t ig_print_code_at(ig_slice s, size_t at, size_t *n);

/* ---- repl_term.c: the terminal ------------------------------------------------------------------------ */

/* Set by signals. `stop`: SIGINT came. `quit`: SIGTERM or SIGHUP, its number. */
extern volatile sig_atomic_t ig_term_stop, ig_term_quit;

void ig_term_open(void);  /* signal handlers; call once */
void ig_term_close(void); /* the terminal as it was */
/* Until fd can be read. 1: it can; 0: the time is over; -1: a signal came, see the flags. */
int ig_term_wait(int fd, int timeout_ms);
void ig_term_size(int *columns, int *rows);
/* Everything or nothing more: false when stdout is gone. */
bool ig_term_write(ig_slice s);
/* Reads one message. Afterwards what is typed is not shown until the next call, which finds it, and Ctrl-C
 * is a signal. IG_EDIT_SUBMIT, IG_EDIT_INTERRUPT or IG_EDIT_EOF; the text is in e->text. */
ig_edit_event ig_term_read(ig_edit *e, bool colour, const char *hint);

/* ---- repl.c: the conversation ------------------------------------------------------------------------- */

enum { IG_REPL_TURNS_MAX = 4096, IG_REPL_TEXT_MAX = 8 << 20 };

typedef struct ig_repl_options {
    const char *system;    /* or NULL */
    ig_sampling sampling;
    int max_tokens;        /* 0: what the context leaves */
    bool seeded, no_history;
} ig_repl_options;

typedef struct ig_repl_turn {
    bool user; /* else the model */
    ig_buf text;
} ig_repl_turn;

typedef struct ig_repl {
    const ig_loaded *l;
    ig_repl_options o;
    bool terminal, colour; /* talking with a person; NO_COLOR is not set */
    bool leave, failed;
    bool output_gone;      /* stdout takes no more */
    int output_errno;      /* then: why */
    ig_edit edit;
    char *history_path;    /* NULL: none */
    char *file;            /* last saved or loaded: /save may write it again */
    ig_buf system;
    ig_repl_turn turns[IG_REPL_TURNS_MAX];
    int n_turns;

    ig_print print, own;   /* the answer that is coming; what we say */
    ig_buf out;
    ig_buf *answer;

    ig_stream_result last; /* figures for /stats */
    bool last_drawn;       /* at a temperature above 0: the seed counted */
    uint64_t last_seed, n_tokens, n_prompt, n_cached, decode_ns;
    int n_answers;
} ig_repl;

/* Talks until the user has enough; gives the exit code. */
int ig_repl_run(const ig_loaded *l, const ig_repl_options *o);

void ig_repl_drop(ig_repl *r, int n_keep);             /* forgets all turns but the first n_keep */
ig_repl_turn *ig_repl_add(ig_repl *r, bool user);      /* NULL: IG_REPL_TURNS_MAX */
ig_status ig_repl_encode(const ig_repl *r, ig_tokens *out, ig_err *err);
void ig_repl_answer(ig_repl *r);                       /* answers the last turn, which is the user's */
double ig_repl_speed(const ig_gen_stats *s);           /* tokens a second after the first; 0: unknown */
/* About the chat, not part of it: stdout on a terminal, stderr otherwise. */
void ig_repl_say(ig_repl *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ig_repl_say_error(ig_repl *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *ig_repl_dim(const ig_repl *r);
const char *ig_repl_plain(const ig_repl *r);

typedef struct ig_repl_input { /* messages from something that is no terminal */
    int fd;
    uint8_t bytes[4096];
    size_t n, at;
} ig_repl_input;

/* One message; several lines when ig_edit_is_open says so. False at the end, which is one of reading when *err
 * holds IG_EIO. IG_ELIMIT (too long) and IG_EFORMAT (not UTF-8) are in *err too, and the next call goes on
 * behind that message. */
bool ig_repl_read(ig_repl_input *in, ig_buf *out, ig_err *err);

/* ---- repl_command.c, repl_file.c ----------------------------------------------------------------------- */

/* True when the text was a command, which was run. "/etc/fstab ..." is a message, and so is "//...". */
bool ig_repl_command(ig_repl *r, ig_buf *text);

ig_status ig_repl_save(const ig_repl *r, const char *path, ig_err *err);
ig_status ig_repl_load(ig_repl *r, const char *path, ig_err *err);
void ig_repl_history_open(ig_repl *r); /* finds the file and reads it; without one there is no history */
void ig_repl_history_add(ig_repl *r, ig_slice text);

static inline ig_slice ig_repl_slice(const ig_buf *b) {
    return (ig_slice){b->p ? b->p : "", b->n};
}

#endif
