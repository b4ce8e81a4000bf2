# Two commands: `make night` runs one complete night in ./lab, `make test` checks everything.
# Both set up what they need first; each step does nothing where its work is done.
LAB ?= lab
NIGHTSHIFT = .venv/bin/nightshift --lab $(LAB)

.PHONY: night test lint setup clean

night: setup
	@sh scripts/docker-setup.sh
	@test -f $(LAB)/nightshift.toml || .venv/bin/nightshift init $(LAB)
	@$(NIGHTSHIFT) night $(ARGS)
	@$(NIGHTSHIFT) review list

test: setup
	@sh scripts/docker-setup.sh
	@bash scripts/lint.sh
	@.venv/bin/python -m pytest $(ARGS)

lint: setup
	@bash scripts/lint.sh

setup:
	@bash scripts/setup.sh

clean: # what the set-up and the tests made; never a lab
	rm -rf .venv .setup.lock .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './$(LAB)/*' -prune -exec rm -rf {} +
