# Tier l1 and its oracle: the goldens anew, or the installed mlx-lm against ours without goldens. Included by the
# Makefile; `./check` needs none of it. L1_PYTHON is one that has the packages of requirements.txt already.
L1       := tools/golden/l1
L1_CACHE ?= $(B)/l1
L1_DUMP  := $(if $(wildcard src/*/dump_l1.c tools/golden/dump_l1.c tools/golden/*/dump_l1.c tests/*/dump_l1.c),$(B)/dump_l1)
ifndef L1_PYTHON
L1_MADE  := $(B)/venv-l1/made
L1_PYTHON = $(B)/venv-l1/bin/python
endif

.PHONY: regolden check-l1-live
$(B)/venv-l1/made: $(L1)/requirements.txt
	$(Q)echo "  VENV $(@D)"; python3 -m venv --clear $(@D) && \
	  $(@D)/bin/pip install -q --disable-pip-version-check --no-input -r $< && touch $@
# Most of the time is for the 4-bit models. CASE="llama-0.08-bf16 ...": these, and no samplers.
regolden: $(L1_MADE)
	$(Q)$(L1_PYTHON) $(L1)/dump.py --cases $(L1_CACHE) $(CASE) $(if $(CASE),,&& \
	  $(L1_PYTHON) $(L1)/ops.py && $(L1_PYTHON) $(L1)/sampled.py $(L1_CACHE) && $(L1_PYTHON) $(L1)/cli.py $(L1_CACHE))
check-l1-live: $(L1_MADE) $(L1_DUMP) $(B)/ingle
	$(Q)$(L1_PYTHON) $(L1)/live.py $(L1_CACHE) $(B) $(SEED)

## regolden     tests/golden/l1 anew, by the pinned mlx-lm in a venv: half an hour; CASE="llama-0.08-bf16": these
## check-l1-live   tier l1 against that mlx-lm as it runs, no stored hashes; SEED=1 again as last time

# The bits of tier l1 do not hang on the compiler: dump_l1 built by both, at -O1 to -O3 and under sanitizers, against
# the goldens of some checkpoints. With contraction on, the control, some must differ.
define NEWLINE


endef
L1_BUILDS := gcc-O1 gcc-O3 clang-O1 clang-O2 clang-O3
L1_FEW    := (llama_llama3 or qwen2 or gemma3 or mixed) and test_every_array
l1_build   = $(MAKE) --no-print-directory -f tools/golden/dump.mk $(abspath $(B))-l1-$(1)/dump_l1 B=$(abspath $(B))-l1-$(1) D=$(abspath $(D)) $(2) && \
  INGLE_PROGRAM=$(abspath $(B))-l1-$(1)/ingle $(PYTHON) -m pytest -q tests/parity/test_l1.py -k "$(L1_FEW) and not 270m"
.PHONY: check-l1-builds
check-l1-builds:
	$(foreach b,$(L1_BUILDS),+$(Q)echo "  L1   $(b)"; $(call l1_build,$(b),CC=$(firstword $(subst -, ,$(b))) OPT=-$(lastword $(subst -, ,$(b))) OPT_K=-$(lastword $(subst -, ,$(b))))$(NEWLINE))
	+$(Q)echo "  L1   address"; $(call l1_build,address,CC=gcc SAN=address)
	+$(Q)echo "  L1   undefined"; $(call l1_build,undefined,CC=gcc SAN=undefined)
	+$(Q)echo "  L1   contraction, which must differ"; ! ($(call l1_build,contract,CC=gcc CFLAGS=-ffp-contract=fast)) >$(B)/l1-contract.log 2>&1 && grep -q ' failed' $(B)/l1-contract.log

## check-l1-builds  tier l1 by gcc and clang, -O1 to -O3, under sanitizers; with contraction it must differ
