"""What each step is sent with: its role and model by rule or by choice, and its prompt."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tenuto.core.ids import short
from tenuto.core.plan import Step
from tenuto.core.progress import Progress
from tenuto.core.rounds import feedback_of
from tenuto.core.selection import Choice, choose
from tenuto.core.tasks import TaskSpec
from tenuto.engine.agent_settings import AgentSettings
from tenuto.engine.driving.attempts import Brief
from tenuto.engine.prompts import Earlier, Prompt, Templates, build
from tenuto.engine.skills import skills_of
from tenuto.keeper.procfs import MARK


class Briefs:
    """Builds briefs from a task, the settings, and what the steps before have said."""

    def __init__(
        self,
        task: TaskSpec,
        progress: Progress,
        settings: AgentSettings,
        cwd: str,
        root: str,
        environ: Mapping[str, str],
    ) -> None:
        """Take the task, its folder, and the project whose templates and skills hold."""
        self._cwd = cwd
        self._id = short(environ.get(MARK, ""))
        self._task = task
        self._progress = progress
        self._settings = settings
        self._templates = Templates(root, environ)
        self._skills = skills_of(root, environ, settings.skill_paths)

    def choice(self, step: Step) -> Choice:
        """Return type, role and model of a step: what was named, else what the rules say."""
        task, settings = self._task, self._settings
        return choose(
            step.task,
            type=step.type or task.type,
            files=(*task.files, *step.files),
            role=step.role or task.role,
            model=step.model or task.model,
            roles=settings.roles,
            tables=settings.selection,
        )

    def brief(self, step: Step, cwd: str) -> Brief:
        """Return everything a step is sent with; raises for a file or skill that is not there."""
        task, choice = self._task, self.choice(step)
        who = self._settings.roles[choice.role]
        assert self._progress.plan is not None
        feedback = feedback_of(self._progress.plan, step)
        names = dict.fromkeys((*who.skills, *task.skills, *step.skills))
        called = [one for one in self._skills.triggered(step.task) if one.name not in names]
        reason = choice.reason
        if called:
            reason += f"; skills by their triggers: {', '.join(one.name for one in called)}"
        files = tuple(dict.fromkeys(map(self._relative, (*task.files, *step.files))))

        def prompt(previous: list[Earlier]) -> Prompt:
            return build(
                step.task,
                role=choice.role,
                who=who,
                cwd=cwd,
                skills=[*map(self._skills.get, names), *called],
                change=task.change,
                task_id=task.task_id,
                context=task.context,
                files=files,
                previous=previous,
                feedback=None if feedback is None else self._earlier(feedback),
                reviews=step.reviews,
                templates=self._templates,
            )

        # a session that goes on knows what it said itself
        earlier = [name for name in step.depends_on if name != feedback]
        told = prompt([self._earlier(name) for name in earlier if name != step.continues])
        alone = ""
        if step.continues in earlier:
            alone = prompt([self._earlier(name) for name in earlier]).text
        return Brief(
            role=choice.role,
            model=lambda runtime: self._settings.model(runtime, choice),
            system=told.system,
            text=told.text,
            reason=reason,
            cwd=cwd,
            alone=alone,
        )

    def _relative(self, name: str) -> str:
        """Return a file below the task's folder by its path from there: a worktree has it too."""
        path = os.path.relpath(name, self._cwd) if os.path.isabs(name) else name
        return name if path.startswith("..") else path

    def _earlier(self, name: str) -> Earlier:
        one = self._progress.steps[name]
        return Earlier(
            name, one.role, one.output, f"see the step {name} in: tenuto show {self._id}"
        )
