/* cmd_chat: `ingle chat [MODEL]`: the options, then the model, then the conversation (repl.c).
 * Threads: main's; the engine has its own. */
#include "app/load.h"
#include "app/repl.h"

int ig_cmd_chat(int argc, char **argv) {
    ig_load_options load = ig_load_defaults();
    ig_repl_options o = {.sampling = ig_sampling_defaults()};
    ig_biases biases = {{{0}, 0}, {{0}}};
    load.engine.n_slots = 1;
    const ig_option options[] = {
        {"model", .letter = 'm', .kind = IG_OPT_TEXT, .to = &load.model, .value = "MODEL",
         .help = "the same as the word MODEL"},
        {"system", .letter = 's', .kind = IG_OPT_TEXT, .to = &o.system, .value = "TEXT",
         .help = "how the model should behave"},
        {"max-tokens", .letter = 'n', .kind = IG_OPT_INT, .to = &o.max_tokens, .max = 1 << 24, .value = "N",
         .help = "longest answer (0: what the context leaves)"},
        IG_SAMPLING_OPTIONS(o.sampling, biases, o.seeded),
        IG_LOAD_OPTIONS(load),
        IG_TEMPLATE_OPTION(load),
        {"no-history", .kind = IG_OPT_BOOL, .to = &o.no_history,
         .help = "neither read nor write the history"},
    };
    const ig_command command = {
        .verb = "chat", .words = "[MODEL]", .summary = "Talk with a model in the terminal.",
        .more = "In the chat, /help lists the commands. Ctrl-C stops an answer; Ctrl-D leaves.\n"
                "Without a terminal each line of the input is a message, and only answers are printed.",
        .options = options, .n_options = (int)(sizeof options / sizeof options[0]), .n_words_max = 1,
    };
    ig_words words;
    int exit_code = IG_EXIT_OK;
    if (!ig_options_parse(&command, argc, argv, &words, &exit_code)) return exit_code;
    if (words.n) load.model = words.v[0];

    if ((exit_code = ig_biases_read(&biases, &o.sampling))) return exit_code;
    if (o.system && !ig_slice_utf8_valid(ig_slice_of(o.system), NULL))
        return ig_app_say(IG_EXIT_USAGE, "--system: the text is not UTF-8");

    ig_loaded l = {0};
    exit_code = ig_load(&l, &load);
    if (exit_code == IG_EXIT_OK && !l.chat) exit_code = ig_app_fail(&l.chat_err);
    if (exit_code == IG_EXIT_OK) exit_code = ig_biases_check(&o.sampling, &l);
    if (exit_code == IG_EXIT_OK) exit_code = ig_repl_run(&l, &o);
    ig_unload(&l);
    return exit_code;
}
