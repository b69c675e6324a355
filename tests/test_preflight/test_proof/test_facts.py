from preflight_models import prove_planted


def test_steps_of_all_kinds():
    proof = prove_planted(kinds=('normal', 'empty'))
    steps = [(step.kind, step.step) for step in proof.all_steps()]
    assert steps == [
        ('normal', 0),
        ('normal', 1),
        ('empty', 0),
        ('empty', 1),
    ]
    assert len(proof.usages()) == len(steps)
