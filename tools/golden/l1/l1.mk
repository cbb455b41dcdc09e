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
