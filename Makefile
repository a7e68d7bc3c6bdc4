# Two commands do everything: `make course` and `make test`. `make lab` opens JupyterLab.
.PHONY: help course test lab doctor labs check clean

help:
	@echo "make course   set up, run the course for this machine's target, print where the report is"
	@echo "make test     set up, run every test"
	@echo "make lab      set up, open JupyterLab on the first page"
	@echo "make doctor   set up, say what this machine can do"
	@echo "make labs     generate labs/ from solutions/"
	@echo "make check    find what breaks the notebook rules, and lint"
	@echo "make clean    remove the environment and all runs"

course:
	@tools/setup.sh course
	@.venv/bin/helpers run $(ARGS)

test:
	@tools/setup.sh test
	@.venv/bin/python -m pytest --nbval-lax $(ARGS)

lab:
	@tools/setup.sh course
	@.venv/bin/helpers lab

doctor:
	@tools/setup.sh course
	@.venv/bin/helpers doctor $(ARGS)

labs:
	@tools/setup.sh course
	@.venv/bin/helpers labs

check:
	@tools/setup.sh test
	@.venv/bin/helpers check
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

clean:
	rm -rf .venv runs
