"""Further rounds of a plan: a reviewer sent a step back, and both run again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenuto.core.plan import Plan, Step


def extended(plan: Plan, steps: Sequence[Step]) -> Plan:
    """Return the plan with the steps of a further round.

    What waits for the reviewer waits for the new one from here on, and has the new work in the
    place of the old: none of these can have begun, since the reviewer has only just ended.
    """
    new = {step.id for step in steps}
    heirs: dict[str | None, str] = {step.continues: step.id for step in steps if step.continues}
    reviewers = {step.continues for step in steps if step.reviews in new}

    def moved(step: Step) -> Step:
        if reviewers.isdisjoint(step.depends_on):
            return step
        return msgspec.structs.replace(
            step,
            depends_on=tuple(dict.fromkeys(heirs.get(one, one) for one in step.depends_on)),
            continues=heirs.get(step.continues, step.continues),
            reviews=heirs.get(step.reviews, step.reviews),
        )

    return msgspec.structs.replace(plan, steps=(*map(moved, plan.steps), *steps))


def feedback_of(plan: Plan, step: Step) -> str | None:
    """Return the id of the review because of which a step is done again, if it is."""
    if step.continues is None:
        return None
    steps = {one.id: one for one in plan.steps}
    again = {one.continues for one in plan.steps if one.reviews == step.id}
    for name in step.depends_on:
        if name in again and name in steps and steps[name].reviews == step.continues:
            return name
    return None


def round_of(plan: Plan, step: Step) -> int:
    """Return how many reviews there were, with this one, of what it reviews."""
    steps = {one.id: one for one in plan.steps}
    number = 1
    while step.continues in steps and step.reviews in steps:
        before = steps[step.continues]
        # one that merely goes on in another reviewer's session is no further round
        if before.reviews is None or steps[step.reviews].continues != before.reviews:
            break
        step = before
        number += 1
    return number
