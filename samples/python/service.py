"""A long-running service that answers inference requests over HTTP, with plain OpenVINO and FastAPI:

    MODEL=model.xml DEVICE=HETERO:GPU,CPU CACHE_DIR=cache uvicorn --app-dir samples/python service:app

The model is compiled once, when the service starts; with CACHE_DIR a restart takes the compiled model from there, and a
new placement in the file is a new entry. `GET /` tells where the model runs. `POST /infer` takes {"inputs": [array, …]}
as nested lists, one for each input of the model, and answers {"outputs": […]}; requests run side by side, as many as
the compiled model asks for (REQUESTS gives another number).
"""

import os
from queue import Queue

import numpy as np
import openvino as ov
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

cache = {"CACHE_DIR": os.environ["CACHE_DIR"]} if "CACHE_DIR" in os.environ else {}
compiled = ov.Core().compile_model(os.environ["MODEL"], os.environ.get("DEVICE", "HETERO:GPU,CPU"), cache)
# A model that was placed for throughput asks for enough requests to keep all of its devices busy.
optimal = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
idle: Queue = Queue(int(os.environ.get("REQUESTS", optimal)))
for _ in range(idle.maxsize):
    idle.put(compiled.create_infer_request())

app = FastAPI()


class Inputs(BaseModel):
    inputs: list[list]


@app.get("/")
def about() -> dict:
    shapes = {port.any_name: str(port.partial_shape) for port in compiled.inputs}
    devices = compiled.get_property("EXECUTION_DEVICES")
    return {"devices": devices, "inputs": shapes, "requests": idle.maxsize}


@app.post("/infer")
def infer(given: Inputs) -> dict:
    if len(given.inputs) != len(compiled.inputs):
        raise HTTPException(422, f"the model has {len(compiled.inputs)} inputs, got {len(given.inputs)}")
    request = idle.get()  # waits while all requests are busy
    try:
        arrays = [
            np.array(value, port.element_type.to_dtype())
            for value, port in zip(given.inputs, compiled.inputs, strict=True)
        ]
        request.infer(dict(enumerate(arrays)))
        return {"outputs": [request.get_output_tensor(i).data.tolist() for i in range(len(compiled.outputs))]}
    except (RuntimeError, ValueError) as error:
        raise HTTPException(422, str(error).strip().splitlines()[-1]) from error
    finally:
        idle.put(request)
