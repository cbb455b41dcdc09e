/* tiers: what cmd_tiers.c and tiers_page.c share. */
#ifndef IG_APP_TIERS_H
#define IG_APP_TIERS_H

#include "app/app.h"
#include "tier/tier.h"

typedef struct ig_tiers_text {
    char s[64];
} ig_tiers_text;
/* "bit-exact, mlx-lm"; by another gate than its own: that gate */
ig_tiers_text ig_tiers_held(const ig_tier_node *n, ig_gate gate);
int ig_tiers_print_page(void);                      /* docs/parity.md */

#endif
