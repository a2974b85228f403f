from django.apps import AppConfig


class E2LLMWebConfig(AppConfig):
    name = "e2llm_web"

    def ready(self) -> None:
        from e2llm_web import checks  # noqa: F401, PLC0415  registers itself; needs the app registry
