/* library: what the verbs get, ls, rm, gc, scan and the search for a model share. */
#ifndef IG_APP_LIBRARY_H
#define IG_APP_LIBRARY_H

#include "app/app.h"
#include "hub/hub.h"

/* ---- library.c -------------------------------------------------------------------------------------- */

/* Where things are. A folder that cannot be named is "". */
typedef struct ig_places {
    char cache[3072];  /* the hub's */
    char models[3072]; /* INGLE_CACHE/models */
    char state[3072];
    char registry[3072];
} ig_places;
void ig_places_find(ig_places *p);

/* Both folders. Says why and returns an exit code otherwise; says the list's warning. */
int ig_library_list(ig_hub_items *out, const ig_places *p, bool all_revisions);
/* A name of nothing but blanks, as a script with an unset variable gives it, is no name: says so, and gives
 * the exit code. */
int ig_library_check_name(const char *arg);
/* Is this the item's whole name: in any case, a file also without .gguf? */
bool ig_library_is_name(const char *name, const char *arg);
/* Every word of `words` is somewhere in `name`, in any case. */
bool ig_library_has_words(const char *name, const char *words);
/* The item that org/name[:pick] means, -1: none. Without a pick the snapshot, else the likeliest GGUF. */
int ig_library_repo_item(const ig_hub_items *l, const ig_hub_name *name);
/* Opens headers only. Fails by facts->why. */
void ig_library_look(ig_hub_facts *out, const ig_hub_item *item);
/* One entry an item, from the registry or the files. When something new was looked at, the registry is
 * written anew; *unsaved is why that failed, else its code is IG_OK. NULL: no memory. */
ig_hub_facts *ig_library_facts(const ig_hub_items *l, const ig_places *p, bool fresh, ig_err *unsaved);

/* ---- cmd_get.c -------------------------------------------------------------------------------------- */

/* `ingle get NAME`, and nothing on stdout. */
int ig_get(const char *name);

#endif
