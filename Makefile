# Shorthand for developers; everything works without make through ./run.
.PHONY: up demo test check fuzz format lock

up:
	./run up
demo:
	./run up --demo
test:
	./run test
check:
	./run check
fuzz:  ## the property tests with far more examples, then the GGUF reader guided by coverage for a minute
	HYPOTHESIS_PROFILE=fuzz ./run test -m hypothesis
	.venv/bin/python -m pip install --quiet --require-hashes -r requirements-fuzz.lock
	DJANGO_SETTINGS_MODULE=tests.settings .venv/bin/python -m tests.inventory.fuzz_gguf
format:
	.venv/bin/ruff check --fix --exit-zero .
	.venv/bin/ruff format .
	.venv/bin/djade --target-version 5.2 $$(git ls-files 'templates/*.html')
lock:  ## after a change of dependencies in pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--group test --group check pyproject.toml --output-file requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements.lock --group clients --output-file requirements-clients.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements.lock --group fuzz --output-file requirements-fuzz.lock
