"""Forms of a request: a file for each form.

A form says whether a message is of it, what it asks of a client, and how the results are answered. This adds
one, ``POST /predict`` with ``{"texts": [...]}``, answered by ``{"answers": [...]}``::

    from sm.errors import WrongPayload
    from sm.router.forms.form import Form, Reading
    from sm.router.request_types import Call

    class TextsCall(Call):
        def convert(self, found, client):        # the results, in the order of the records
            return {"answers": found}

    class Texts(Form):
        paths = ("/predict",)                    # none: a body of /invocations

        def has(self, reading: Reading):         # the cheapest test first
            return True

        def read(self, reading: Reading):
            value = reading.json()               # parsed once, whoever asks
            if not isinstance(value, dict) or not isinstance(value.get("texts"), list):
                raise WrongPayload("must be a list of texts", field=("texts",))
            return TextsCall(value["texts"], root=("texts",), many=True)

    FORMS = (Texts(),)

and, in the pyproject.toml of its distribution::

    [project.entry-points."sm.forms"]
    texts = "the_package.the_module:FORMS"

The rest is the box's: the route with its API key and trace, admission, deadline, limits of records,
batches, ``Accept``, and errors of a record under the form's own names (``texts[2].text``). Without ``many``
there is one record, and its result is ``found[0]``. A form may also change the shape of an error, and repeat
in it what ``read`` noted by ``reading.echo = value.get("id")``, before its first check::

        def write_error(self, error, request_id, echo):    # status and headers stay
            return sm.http.messages.write_error(error, request_id, {"id": echo, "error": error.sentence})

It may add its part of ``/openapi.json`` (``schema``) and a list of the models that it can call (``lists``),
and keep and write an answer of many large results itself (``keep``, ``write``). An error's path begins with
``root`` and ends with the field of the client's own record; where a caller does not write that field,
``Call.name`` takes it out: ``("texts", 2, "text")`` becomes ``("texts", 2)``. A ``Call`` answers JSON:
another ``Accept`` is a 406.

A body of ``/invocations`` is of the first row of ``table.py`` that has it: the core's rows of certain types
first, then those of extensions, then v2, generate, dispatch. Extensions are asked in the order of their entry
points' names, and each one's rows in the order of its tuple: a row that another would take stands before it.
A row of an extension is asked for many bodies: it looks at ``reading.kind``, ``reading.body[:1]`` or
``reading.client`` before ``reading.value``. A path of its own may have several forms: the last one takes what
no other has.
"""
